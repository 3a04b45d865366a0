"""What CUPTI tells of every node that a graph runs: the only file that imports ``cupti``.

Records carry the id of a node of the *executable* graph. Which node of the graph it was made of is
told by a callback while the graph is instantiated, so a recorder has to be at work by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

from graphc.gpu.protocol import NodeKind
from graphc.text.diagnostics import CudaError, UsageError

BUFFER_NBYTES = 8 << 20
FORCED = 1  # flush what is not complete, too
HINT = "pip install 'graphc[trace]', or trace by events (--by events)"


@dataclass(frozen=True, slots=True)
class Activity:
    """One record: a kernel, copy or fill that ran, in nanoseconds of one clock for all GPUs."""

    kind: NodeKind
    what: str  # the name of the kernel's function; empty for others
    shape: tuple[int, ...]  # of kernels: the grid, then the block
    nbytes: int  # of copies and fills
    start_ns: int
    stop_ns: int
    device: int
    launch: int  # the same for all that one launch of a graph ran
    node: int  # of the executable graph; 0: not of a graph


class Recorder(Protocol):
    """A source of records. Graphs that are to be told apart are instantiated while it records."""

    def start(self) -> None: ...
    def node_ids(self, nodes: Sequence[int]) -> Mapping[int, int]:
        """Id of each executable node that was made of one of these -> that one."""

    def drain(self) -> tuple[Activity, ...]:
        """All that was recorded since ``start``; what was launched has been waited for."""

    def dropped(self) -> int:
        """How many records did not fit into CUPTI's buffers."""

    def stop(self) -> None: ...


def has_cupti() -> bool:
    return find_spec("cupti") is not None


@dataclass(slots=True)
class Cupti:
    """The recorder over the package ``cupti-python``."""

    api: Any = field(default_factory=lambda: cupti_module())
    subscriber: int | None = None
    enabled: list[int] = field(default_factory=list)
    records: list[Activity] = field(default_factory=list)
    made_of: dict[int, int] = field(default_factory=dict)  # id of a clone -> id of its original

    def start(self) -> None:
        api = self.api
        self.records.clear()
        self.made_of.clear()
        try:
            self.subscriber = api.subscribe(self.hear, None)
            resource, cloned = api.CallbackDomain.RESOURCE, api.CallbackIdResource.GRAPHNODE_CLONED
            api.enable_callback(1, self.subscriber, resource, cloned)
            api.activity_register_callbacks(lambda: (BUFFER_NBYTES, 0), self.take)
            for kind in self.kinds():
                api.activity_enable(kind)
                self.enabled.append(kind)
        except Exception as problem:  # the package's own kinds of errors, and the driver's
            self.stop()
            raise refused(problem) from None

    def kinds(self) -> tuple[int, ...]:
        kinds = self.api.ActivityKind
        return kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMCPY2, kinds.MEMSET

    def hear(self, _: object, domain: int, callback: int, facts: Any) -> None:
        api = self.api
        resource, cloned = api.CallbackDomain.RESOURCE, api.CallbackIdResource.GRAPHNODE_CLONED
        if domain != resource or callback != cloned:
            return
        graph = api.GraphData.from_ptr(facts.resource_descriptor)
        made = api.get_graph_node_id(graph.node)
        self.made_of[made] = api.get_graph_node_id(graph.original_node)

    def take(self, records: Iterable[Any]) -> None:
        """Records are CUPTI's own memory, which it takes back when this returns."""
        kinds = self.api.ActivityKind
        copies = (kinds.MEMCPY, kinds.MEMCPY2)
        for each in records:
            if source := getattr(each, "source_graph_node_id", 0):  # from CUPTI 13.4 on
                self.made_of.setdefault(each.graph_node_id, source)
            if each.kind == kinds.CONCURRENT_KERNEL:
                self.records.append(activity(NodeKind.KERNEL, each, 0, each.name, shape_of(each)))
            elif each.kind in copies:
                self.records.append(activity(NodeKind.COPY, each, each.bytes))
            elif each.kind == kinds.MEMSET:
                self.records.append(activity(NodeKind.FILL, each, each.bytes))

    def node_ids(self, nodes: Sequence[int]) -> Mapping[int, int]:
        own = {self.api.get_graph_node_id(node): node for node in nodes}
        found = dict(own)
        for made in self.made_of:
            first = made
            while first in self.made_of and first not in own:
                first = self.made_of[first]
            if first in own:
                found[made] = own[first]
        return found

    def drain(self) -> tuple[Activity, ...]:
        try:
            self.api.activity_flush_all(FORCED)
        except Exception as problem:
            raise refused(problem) from None
        return tuple(self.records)

    def dropped(self) -> int:
        from ctypes import addressof, c_size_t

        found = c_size_t(0)
        self.api.activity_get_num_dropped_records(0, 0, addressof(found))
        return found.value

    def stop(self) -> None:
        """Stop recording; what cannot be undone changes no result."""
        for kind in self.enabled:
            self.quietly(self.api.activity_disable, kind)
        self.enabled.clear()
        if self.subscriber is not None:
            self.quietly(self.api.unsubscribe, self.subscriber)
        self.subscriber = None

    def quietly(self, call: Any, argument: int) -> None:
        from contextlib import suppress

        with suppress(Exception):
            call(argument)


def cupti_module() -> Any:
    try:
        from cupti import cupti
    except ImportError as problem:
        raise UsageError(f"CUPTI is not installed ({problem}): {HINT}") from None
    return cupti


def shape_of(record: Any) -> tuple[int, ...]:
    grid = record.grid_x, record.grid_y, record.grid_z
    return (*grid, record.block_x, record.block_y, record.block_z)


def activity(
    kind: NodeKind, record: Any, nbytes: int, what: str = "", shape: tuple[int, ...] = ()
) -> Activity:
    return Activity(
        kind,
        what or "",
        shape,
        nbytes,
        record.start,
        record.end,
        record.device_id,
        record.correlation_id,
        record.graph_node_id,
    )


def refused(problem: Exception) -> CudaError:
    return CudaError(
        "CUPTI",
        type(problem).__name__,
        f"{problem}; another profiler may be attached, or the driver does not let this user trace",
        hint="trace by events instead (--by events)",
    )
