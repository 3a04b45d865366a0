"""The executable graph of a session: built, updated in place, set to a count, launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from graphc.backends.cuda.emit import Built
from graphc.backends.cuda.readback import ReadBack, read_back
from graphc.backends.cuda.session import Session
from graphc.backends.cuda.work import CallsOfCount
from graphc.gpu.probe import current
from graphc.gpu.protocol import Call, CopyCall, FillCall
from graphc.ir import Emit
from graphc.text.diagnostics import CudaError

UNSET = -1  # no count
CountedOps: TypeAlias = dict[int, list[tuple[tuple[int, ...], CallsOfCount]]]


class Executable:
    """What ``launch`` replays; without a graph of its own where the plan is emitted eagerly."""

    def __init__(self, session: Session) -> None:
        self.session, self.driver = session, session.driver
        self.is_eager = session.schedule.emit is Emit.STREAMS
        self.built: Built | None = None  # the graph that was instantiated
        self.latest: Built | None = None  # that of the latest build, to which it was updated
        self.handle = 0
        self.rows = UNSET  # the count to which words and nodes are set
        self.is_stale = True  # the memory is bound otherwise than when it was built
        self.enabled: dict[int, bool] = {}  # counted nodes whose state is known
        self.counted: CountedOps | None = None  # what a change of the count goes through

    def ensure_built(self, rows: int | None) -> None:
        if not self.is_stale:
            return
        self.session.memory.allocate_rest()
        self.session.prepare()
        if self.is_eager:
            self.is_stale = False
        else:
            self.replace(self.session.emitter.build(rows))

    def replace(self, built: Built) -> None:
        """Take over a new graph: by update where the driver can, else as a new executable."""
        try:
            read_back(self.driver, self.session.schedule, built)
            if self.built is not None and self.driver.update_exec(self.handle, built.graph) is None:
                # Later changes of nodes go by the handles of the graph that was instantiated.
                self.drop_update()
                self.latest, self.is_stale = built, False
                self.rows, self.enabled, self.counted = UNSET, {}, None
                return
            handle = self.instantiate(built)
        except BaseException:
            self.driver.destroy_graph(built.graph)
            raise
        self.drop()
        self.built = self.latest = built
        self.handle, self.is_stale = handle, False

    def instantiate(self, built: Built) -> int:
        has_priorities = any(stream.priority for stream in self.session.schedule.streams)
        return self.driver.instantiate(built.graph, use_priorities=has_priorities)

    def drop(self) -> None:
        """Wait for launches, then destroy the graph at hand; the next launch builds one."""
        if self.built is not None:
            self.session.wait_for_all()
            self.driver.destroy_exec(self.handle)
            self.drop_update()
            self.driver.destroy_graph(self.built.graph)
        self.built, self.latest, self.handle, self.rows = None, None, 0, UNSET
        self.enabled, self.counted, self.is_stale = {}, None, True

    def drop_update(self) -> None:
        """Destroy the graph of an update; the executable goes by the one instantiated."""
        if self.latest is not None and self.latest is not self.built:
            self.driver.destroy_graph(self.latest.graph)
        self.latest = self.built

    def read_back(self) -> ReadBack | None:
        if self.latest is None:
            return None
        return read_back(self.driver, self.session.schedule, self.latest)

    def set_rows(self, rows: int | None, stream: int, context: int) -> None:
        """Make the next launches use ``rows`` rows."""
        if rows is None or rows == self.rows:
            return
        self.rows = UNSET
        if self.built is not None:
            self.set_nodes(self.built, rows)
        self.session.set_count(rows, stream, context)
        self.rows = rows

    def set_nodes(self, built: Built, rows: int) -> None:
        """Give every node of a counted copy or fill its bytes for the count, or switch it off."""
        try:
            self.set_counted(built, rows)
        except CudaError:
            # A driver may refuse some changes (of a fill's width): then build anew for this count.
            self.drop()
            self.replace(self.session.emitter.build(rows))
            assert self.built is not None
            self.set_counted(self.built, rows, only_states=True)

    def set_counted(self, built: Built, rows: int, *, only_states: bool = False) -> None:
        if self.counted is None:
            self.counted = self.counted_ops(built)
        for context, ops in self.counted.items():
            with current(self.driver, context):
                for nodes, calls_of in ops:
                    calls = calls_of(rows)
                    self.switch(nodes, bool(calls))
                    for node, call in zip(nodes, () if only_states else calls, strict=False):
                        self.set_node(node, call, context)

    def counted_ops(self, built: Built) -> CountedOps:
        """By context, the nodes whose bytes follow the count, and how they do."""
        found: CountedOps = {gpu.context: [] for gpu in self.session.used.values()}
        work = self.session.work
        for op in work.program:
            if work.is_counted(op) and built.nodes[op.name]:
                context = self.session.gpus[op.device].context
                found[context].append((built.nodes[op.name], work.calls_of(op)))
        return found

    def switch(self, nodes: tuple[int, ...], is_enabled: bool) -> None:
        for node in nodes:
            if self.enabled.get(node) is not is_enabled:
                self.driver.set_enabled(self.handle, node, is_enabled)
                self.enabled[node] = is_enabled

    def set_node(self, node: int, call: Call, context: int) -> None:
        match call:
            case CopyCall():
                self.driver.set_copy(self.handle, node, call, context)
            case FillCall():
                self.driver.set_fill(self.handle, node, call, context)

    def launcher(self, rows: int | None, stream: int, context: int) -> Callable[[], None]:
        """What one launch on the stream does."""
        if not self.is_eager:
            return self.driver.launcher(self.handle, stream)
        session = self.session
        origin = session.queues.streams[session.schedule.origin]

        def issue() -> None:
            session.order(stream, context, origin)
            session.emitter.eager(rows)
            session.order(origin, session.home.context, stream)

        return issue
