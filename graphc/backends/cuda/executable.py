"""The executable graphs of an entry, one for each unit: built, updated in place, set to a count,
launched together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from graphc.backends.cuda.emit import Built, Emitter
from graphc.backends.cuda.readback import ReadBack, read_back
from graphc.backends.cuda.session import UNSET, Session
from graphc.backends.cuda.work import CallsOfCount
from graphc.gpu.probe import current
from graphc.gpu.protocol import Call, CopyCall, FillCall, LaunchStep, RecordStep, Step, WaitStep
from graphc.ir import Emit, LaunchContract, Unit
from graphc.text.diagnostics import CudaError

CountedOps: TypeAlias = dict[int, list[tuple[tuple[int, ...], CallsOfCount]]]


class Executable:
    """What ``launch`` replays; without graphs of its own where the plan is emitted eagerly."""

    def __init__(self, session: Session, entry: str | None = None) -> None:
        self.session, self.driver = session, session.driver
        self.emitter = session.emitters[entry or session.schedule.entry]
        self.schedule = self.emitter.schedule
        self.is_eager = self.schedule.emit is Emit.STREAMS
        self.graphs = [UnitGraph(session, self.emitter, unit) for unit in self.schedule.parts]
        self.rows = UNSET  # the count to which nodes are set
        self.is_stale = True  # the memory is bound otherwise than when it was built

    @property
    def built(self) -> Built | None:
        """The graph of the first unit."""
        return self.graphs[0].built

    @property
    def is_free(self) -> bool:
        """Whether each unit is launched on a stream of its own, ordered with nothing else."""
        return bool(self.schedule.units) and self.schedule.launch is LaunchContract.FREE

    def ensure_built(self, rows: int | None) -> None:
        if not self.is_stale:
            return
        self.session.memory.allocate_rest()
        self.session.prepare()
        for graph in () if self.is_eager else self.graphs:
            graph.replace(self.emitter.build(rows, graph.unit))
        # An update leaves nodes with the bytes of the count for which it was built.
        self.is_stale, self.rows = False, UNSET

    def drop(self) -> None:
        """Wait for launches, then destroy the graphs at hand; the next launch builds new ones."""
        for graph in self.graphs:
            graph.drop()
        self.rows, self.is_stale = UNSET, True

    def upload(self) -> None:
        for graph in () if self.is_eager else self.graphs:
            stream = self.session.unit_streams[graph.unit.name]
            self.driver.upload(graph.handle, stream)
            self.driver.synchronize(stream)

    def read_back(self) -> ReadBack | None:
        found = [graph.read_back() for graph in self.graphs if graph.latest is not None]
        return sum(found[1:], found[0]) if found else None

    def set_rows(
        self, rows: int | None, stream: int, context: int, streams: Mapping[str, int] | None = None
    ) -> None:
        """Make the next launches use ``rows`` rows: on the stream, or on that of each unit."""
        if rows is None:
            return
        if rows != self.rows:
            self.set_nodes(rows)
        if rows != self.session.rows:
            self.session.rows = UNSET
            if streams is None:
                self.session.set_count(rows, stream, context)
            else:
                self.session.set_counts_apart(rows, streams)
            self.session.rows = rows

    def set_nodes(self, rows: int) -> None:
        self.rows = UNSET
        try:
            for graph in self.graphs:
                graph.set_nodes(rows)
        except BaseException:
            self.is_stale = True  # one of them may be gone
            raise
        self.rows = rows

    def launcher(self, rows: int | None, stream: int, context: int) -> Callable[[], None]:
        """What one launch on the stream does: the caller's work goes on when all units ended."""
        if self.is_eager:
            callers = dict.fromkeys(self.origins(), (stream, context))
            return self.guarded(lambda: self.issue(rows, callers))
        if not self.schedule.units:
            return self.driver.launcher(self.graphs[0].handle, stream)
        return self.guarded(self.driver.sequence(tuple(self.joined(stream, context))))

    def free_launcher(self, rows: int | None, streams: Mapping[str, int]) -> Callable[[], None]:
        """What one launch of every unit on its own stream does."""
        if self.is_eager:
            contexts = {unit.name: self.context_of(unit) for unit in self.schedule.parts}
            callers = {name: (stream, contexts[name]) for name, stream in streams.items()}
            return self.guarded(lambda: self.issue(rows, callers))
        steps = [LaunchStep(each.handle, streams[each.unit.name]) for each in self.graphs]
        return self.guarded(self.driver.sequence(steps))

    def joined(self, stream: int, context: int) -> Iterator[Step]:
        """The caller's stream, then all units, then the caller's stream. The unit on the caller's
        GPU runs on the caller's stream itself, launched last: the others have a longer way."""
        own = next((each for each in self.graphs if self.context_of(each.unit) == context), None)
        others = [each for each in self.graphs if each is not own]
        began = self.session.joint(context)
        if others:
            yield RecordStep(began, stream)
        for each in others:
            yield WaitStep(self.stream_of(each.unit), began)
            yield LaunchStep(each.handle, self.stream_of(each.unit))
        if own is not None:
            yield LaunchStep(own.handle, stream)
        for each in others:
            ended = self.session.joint(self.context_of(each.unit))
            yield RecordStep(ended, self.stream_of(each.unit))
            yield WaitStep(stream, ended)

    def context_of(self, unit: Unit) -> int:
        return self.session.gpus[self.emitter.device_of(unit.origin)].context

    def stream_of(self, unit: Unit) -> int:
        return self.session.unit_streams[unit.name]

    def guarded(self, replay: Callable[[], None]) -> Callable[[], None]:
        """Refuse to replay once a unit has failed; if a launch fails half-way, let nobody wait."""
        words = self.session.words
        if words is None:
            return replay
        stopped, fault, stop = words.stopped, words.fault, words.stop

        def launch() -> None:
            if stopped.value:
                problem = fault()
                assert problem is not None
                raise problem
            try:
                replay()
            except BaseException:
                stop()
                raise

        return launch

    def origins(self) -> dict[str, int]:
        """Unit -> the stream on which its ops begin and end, where they are issued eagerly."""
        streams = self.emitter.queues.streams
        return {unit.name: streams[unit.origin] for unit in self.schedule.parts}

    def issue(self, rows: int | None, callers: Mapping[str, tuple[int, int]]) -> None:
        """Issue all ops now, between what the callers' streams have and what they get next.

        ``callers`` are streams and their contexts, by unit.
        """
        origins = self.origins()
        for unit, (stream, context) in callers.items():
            self.session.order(stream, context, origins[unit])
        self.emitter.eager(rows)
        for part in self.schedule.parts:
            stream, _ = callers[part.name]
            self.session.order(origins[part.name], self.context_of(part), stream)


class UnitGraph:
    """The executable graph of one unit."""

    def __init__(self, session: Session, emitter: Emitter, unit: Unit) -> None:
        self.session, self.driver = session, session.driver
        self.emitter, self.unit = emitter, unit
        self.built: Built | None = None  # the graph that was instantiated
        self.latest: Built | None = None  # that of the latest build, to which it was updated
        self.handle = 0
        self.enabled: dict[int, bool] = {}  # counted nodes whose state is known
        self.counted: CountedOps | None = None  # what a change of the count goes through

    def replace(self, built: Built) -> None:
        """Take over a new graph: by update where the driver can, else as a new executable."""
        try:
            read_back(self.driver, self.emitter.schedule, built)
            if self.built is not None and self.driver.update_exec(self.handle, built.graph) is None:
                # Later changes of nodes go by the handles of the graph that was instantiated.
                self.drop_update()
                self.latest, self.enabled, self.counted = built, {}, None
                return
            handle = self.instantiate(built)
        except BaseException:
            self.driver.destroy_graph(built.graph)
            raise
        self.drop()
        self.built = self.latest = built
        self.handle = handle

    def instantiate(self, built: Built) -> int:
        has_priorities = any(stream.priority for stream in self.emitter.schedule.streams)
        return self.driver.instantiate(built.graph, use_priorities=has_priorities)

    def drop(self) -> None:
        """Wait for launches, then destroy the graph at hand."""
        if self.built is not None:
            self.session.wait_for_all()
            self.driver.destroy_exec(self.handle)
            self.drop_update()
            self.driver.destroy_graph(self.built.graph)
        self.built, self.latest, self.handle = None, None, 0
        self.enabled, self.counted = {}, None

    def drop_update(self) -> None:
        """Destroy the graph of an update; the executable goes by the one instantiated."""
        if self.latest is not None and self.latest is not self.built:
            self.driver.destroy_graph(self.latest.graph)
        self.latest = self.built

    def read_back(self) -> ReadBack:
        assert self.latest is not None
        return read_back(self.driver, self.emitter.schedule, self.latest)

    def set_nodes(self, rows: int) -> None:
        """Give every node of a counted copy or fill its bytes for the count, or switch it off."""
        if self.built is None:
            return
        try:
            self.set_counted(self.built, rows)
        except CudaError:
            # A driver may refuse some changes (of a fill's width): then build anew for this count.
            self.drop()
            self.replace(self.emitter.build(rows, self.unit))
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
        work = self.emitter.work
        for op in self.emitter.ops_of(self.unit):
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
