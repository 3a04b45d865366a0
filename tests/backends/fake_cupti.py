"""The Python package of CUPTI, imitated over the fake driver: what it records follows its launches.

As CUPTI does, it gives the nodes of an executable ids of their own, tells of each clone by a
callback, hands over records that live as long as the callback, and times all GPUs on one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from types import SimpleNamespace as Space
from typing import Any

from fakes import RecordingDriver
from small_plan import KERNELS

from graphc.gpu.protocol import CopyCall, FillCall, KernelCall

KINDS = Space(CONCURRENT_KERNEL=10, MEMCPY=1, MEMCPY2=22, MEMSET=2)
KIND_OF = {KernelCall: KINDS.CONCURRENT_KERNEL, CopyCall: KINDS.MEMCPY, FillCall: KINDS.MEMSET}
NODE_US = 10  # every node takes as long, one after the other, and starts 1 us after the last


def shape_of(call: Any) -> dict[str, int]:
    if not isinstance(call, KernelCall):
        return {}
    sizes = (*call.grid, *call.block)
    names = (f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
    return dict(zip(names, sizes, strict=True))


class FakeCupti:
    """What ``from cupti import cupti`` gives."""

    ActivityKind = KINDS
    CallbackDomain = Space(RESOURCE=3)
    CallbackIdResource = Space(GRAPHNODE_CLONED=20)

    def __init__(self) -> None:
        self.hear: Any = None
        self.take: Any = None
        self.enabled: set[int] = set()
        self.pending: list[Any] = []
        self.lost = 0
        self.graphs: dict[int, Any] = {}
        self.GraphData = Space(from_ptr=self.graphs.__getitem__)

    def subscribe(self, callback: Any, userdata: object) -> int:
        self.hear = callback
        return 1

    def unsubscribe(self, subscriber: int) -> None:
        self.hear = None

    def enable_callback(self, enable: int, subscriber: int, domain: int, callback: int) -> None:
        assert (enable, domain, callback) == (1, 3, 20)

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        nbytes, records = requested()
        assert nbytes >= 1 << 20
        assert records == 0
        self.take = completed

    def activity_enable(self, kind: int) -> None:
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def activity_flush_all(self, flag: int) -> None:
        records, self.pending = self.pending, []
        self.take(records)
        for each in records:
            vars(each).clear()  # the memory is CUPTI's again

    def activity_get_num_dropped_records(self, context: int, stream: int, address: int) -> None:
        from ctypes import c_size_t

        c_size_t.from_address(address).value = self.lost

    def get_graph_node_id(self, node: int) -> int:
        return 1_000_000 + node

    def cloned(self, node: int, original: int) -> None:
        if self.hear is not None:
            self.graphs[node] = Space(node=node, original_node=original)
            self.hear(None, 3, 20, Space(resource_descriptor=node))
            self.hear(None, 3, 19, Space(resource_descriptor=0))  # of no interest


class TracedDriver(RecordingDriver):
    """Instantiates and launches as under CUPTI; ``spoil`` changes records before they are told."""

    def __init__(
        self,
        cupti: FakeCupti,
        spoil: Callable[[Any], None] = lambda record: None,
        kernels: Mapping[str, Any] = KERNELS,
    ) -> None:
        super().__init__(kernels=kernels)
        self.cupti, self.spoil = cupti, spoil
        self.named: dict[int, str] = {}  # kernel or function -> the name in its code
        self.clones: dict[int, dict[int, int]] = {}
        self.now_us, self.launches = 5000, count(1)

    def kernel(self, library: int, entry: str) -> int:
        kernel = super().kernel(library, entry)
        self.named[kernel] = entry
        return kernel

    def function(self, kernel: int) -> int:
        function = super().function(kernel)
        self.named[function] = self.named[kernel]
        return function

    def instantiate(self, graph: int, *, use_priorities: bool) -> int:
        executable = super().instantiate(graph, use_priorities=use_priorities)
        self.clones[executable] = {}
        for node in self.graphs[graph].nodes:
            clone = self.clones[executable][node] = next(self.handles)
            self.cupti.cloned(clone, node)
        return executable

    def launch_graph(self, executable: int, stream: int) -> None:
        super().launch_graph(executable, stream)
        found, launch = self.execs[executable], next(self.launches)
        for node in found.order:
            call = found.calls[node]
            if type(call) in KIND_OF and node not in found.disabled:
                self.record_activity(call, self.clones[executable][node], launch)

    def record_activity(self, call: Any, clone: int, launch: int) -> None:
        start = self.now_us * 1000
        self.now_us += NODE_US + 1
        record = Space(
            kind=KIND_OF[type(call)],
            name=self.named[call.function] if isinstance(call, KernelCall) else "",
            **shape_of(call),
            bytes=call.nbytes if isinstance(call, CopyCall) else 0,
            start=start,
            end=start + NODE_US * 1000,
            device_id=0,
            correlation_id=launch,
            graph_node_id=self.cupti.get_graph_node_id(clone),
        )
        self.spoil(record)
        if record.kind in self.cupti.enabled:
            self.cupti.pending.append(record)
