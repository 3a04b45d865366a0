"""Calls on streams and events: captured into a graph, built as explicit nodes, or issued eagerly.

Each unit of a schedule is a graph of its own. Its capture begins and ends on the unit's origin
stream; every other stream enters it by waiting for an event of one that is in. Whatever fails in
between, the capture is ended, so that streams, contexts and process stay usable. Of each op the
nodes are kept, so that updates, traces and messages can speak of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphc.backends.cuda.memory import Gpu
from graphc.backends.cuda.work import Work
from graphc.backends.extern import call_function
from graphc.backends.outside import calling
from graphc.gpu.probe import current
from graphc.gpu.protocol import Call, CopyCall, Driver, FillCall, KernelCall, MemoryOpsCall
from graphc.ir import Emit, Extern, Instruction, Join, Op, Schedule, Unit
from graphc.text.diagnostics import CompilerBug, CudaError, error

Around: TypeAlias = Callable[[Op, str, bool], None]


@dataclass(slots=True)
class Built:
    """A unit's graph as it was made: its nodes by op, and the calls of which they were made."""

    unit: Unit
    graph: int
    nodes: dict[str, tuple[int, ...]]
    calls: dict[str, tuple[Call, ...]]


@dataclass(slots=True)
class Queues:
    """Streams and events of a schedule, each in the context of its device."""

    driver: Driver
    schedule: Schedule
    gpus: Mapping[str, Gpu]
    streams: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def open(self) -> None:
        devices = {stream.name: stream.device for stream in self.schedule.streams}
        for stream in self.schedule.streams:
            with current(self.driver, self.gpus[stream.device].context):
                self.streams[stream.name] = self.driver.create_stream(stream.priority)
        for each in self.schedule.instructions:
            if each.kind == "record" and each.event not in self.events:
                with current(self.driver, self.gpus[devices[each.stream]].context):
                    self.events[each.event] = self.driver.create_event()

    def close(self) -> None:
        for event in self.events.values():
            self.driver.destroy_event(event)
        for stream in self.streams.values():
            self.driver.destroy_stream(stream)
        self.events.clear()
        self.streams.clear()


@dataclass(slots=True)
class Emitter:
    """Emits the ops of one schedule, again after each change of bindings."""

    driver: Driver
    work: Work
    queues: Queues
    gpus: Mapping[str, Gpu]
    argument: Callable[[str], Any]  # buffer -> the array that an extern op is given
    functions: Mapping[str, Callable[..., Any]]  # of extern ops, by step

    @property
    def schedule(self) -> Schedule:
        return self.work.schedule

    @property
    def parts(self) -> tuple[Unit, ...]:
        return self.schedule.parts

    def ops_of(self, unit: Unit) -> Iterator[Op]:
        return (op for op in self.work.program if op.device in unit.devices)

    def build(self, count: int | None, unit: Unit) -> Built:
        if self.schedule.emit is Emit.NODES:
            return self.nodes(count, unit)
        return self.capture(count, unit=unit)

    def capture(
        self, count: int | None, around: Around | None = None, *, unit: Unit | None = None
    ) -> Built:
        """``around`` is told of each op before (False) and after (True); with it, ops that have
        no rows now get no nodes."""
        part = unit or self.parts[0]
        origin = self.queues.streams[part.origin]
        context = self.gpus[self.device_of(part.origin)].context
        with current(self.driver, context):
            self.driver.begin_capture(origin)
            try:
                nodes, calls = self.captured_ops(count, around, part)
            except BaseException:
                self.abandon(origin)
                raise
            graph = self.driver.end_capture(origin)
        return Built(part, graph, nodes, calls)

    def abandon(self, origin: int) -> None:
        """End a capture that failed; what it left is thrown away, the first error stands."""
        with suppress(CudaError):
            self.driver.destroy_graph(self.driver.end_capture(origin))

    def captured_ops(
        self, count: int | None, around: Around | None, unit: Unit
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[Call, ...]]]:
        nodes: dict[str, tuple[int, ...]] = {}
        calls: dict[str, tuple[Call, ...]] = {}
        joined = {unit.origin}
        recorded: set[str] = set()

        def run(op: Op, stream: str) -> None:
            if stream not in joined:
                raise CompilerBug(
                    "emit", f"op '{op.name}' is on stream '{stream}' outside the capture"
                )
            if around is None:
                calls[op.name] = self.work.emitted(op, count)
                nodes[op.name] = self.captured(op, self.queues.streams[stream], calls[op.name])
                return
            around(op, stream, False)
            calls[op.name] = self.work.calls(op, count)
            nodes[op.name] = self.captured(op, self.queues.streams[stream], calls[op.name])
            around(op, stream, True)

        def record(stream: str, event: str) -> None:
            if stream in joined:
                recorded.add(event)

        def wait(stream: str, event: str) -> None:
            if event in recorded:
                joined.add(stream)

        self.issue(self.instructions_of(unit), run, record, wait)
        return nodes, calls

    def captured(self, op: Op, stream: int, calls: tuple[Call, ...]) -> tuple[int, ...]:
        """Issue the op's calls into the capture; the nodes that they became."""
        if isinstance(op.work, Extern):
            return self.captured_extern(op, stream)
        nodes: list[int] = []
        for call in calls:
            self.enqueue(call, stream)
            tail = self.driver.capture_tail(stream)
            if tail is None or len(tail[1]) != 1:
                raise CompilerBug("emit", f"op '{op.name}' left no single node in the capture")
            nodes += tail[1]
        return tuple(nodes)

    def captured_extern(self, op: Op, stream: int) -> tuple[int, ...]:
        tail = self.driver.capture_tail(stream)
        assert tail is not None
        before = set(self.driver.nodes(tail[0]))
        self.call_extern(op, stream)
        return tuple(node for node in self.driver.nodes(tail[0]) if node not in before)

    def nodes(self, count: int | None, unit: Unit) -> Built:
        """Explicit nodes in program order, with the schedule's true edges and no others."""
        before: dict[str, list[str]] = {op.name: [] for op in self.ops_of(unit)}
        for first, second in self.schedule.edges:
            if first in before and second in before:
                before[second].append(first)
        built = Built(unit, self.driver.create_graph(), {}, {})
        ends: dict[str, tuple[int, ...]] = {}  # what a follower of the op depends on
        try:
            for op in self.ops_of(unit):
                needs = tuple(
                    dict.fromkeys(node for each in before[op.name] for node in ends[each])
                )
                with for_op(op):
                    built.calls[op.name] = self.work.emitted(op, count)
                    built.nodes[op.name] = self.added(op, built, needs)
                ends[op.name] = built.nodes[op.name][-1:] or needs
        except BaseException:
            self.driver.destroy_graph(built.graph)
            raise
        return built

    def added(self, op: Op, built: Built, needs: tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(op.work, Join):
            return (self.driver.add_empty(built.graph, needs),)
        if isinstance(op.work, Extern):
            return (self.added_extern(op, built.graph, needs),)
        context = self.gpus[op.device].context
        nodes: list[int] = []
        with current(self.driver, context):
            for call in built.calls[op.name]:
                nodes.append(self.add(built.graph, needs, call, context))
                needs = (nodes[-1],)
        return tuple(nodes)

    def add(self, graph: int, needs: tuple[int, ...], call: Call, context: int) -> int:
        match call:
            case KernelCall():
                return self.driver.add_kernel(graph, needs, call, context)
            case CopyCall():
                return self.driver.add_copy(graph, needs, call, context)
            case FillCall():
                return self.driver.add_fill(graph, needs, call, context)
            case MemoryOpsCall():
                return self.driver.add_memory_ops(graph, needs, call, context)

    def added_extern(self, op: Op, graph: int, needs: tuple[int, ...]) -> int:
        """What the callable enqueues, captured by itself, is one child graph."""
        with current(self.driver, self.gpus[op.device].context):
            stream = self.driver.create_stream(op.placement.priority)
            try:
                self.driver.begin_capture(stream)
                try:
                    self.call_extern(op, stream)
                except BaseException:
                    self.abandon(stream)
                    raise
                child = self.driver.end_capture(stream)
                try:
                    return self.driver.add_child(graph, needs, child)
                finally:
                    self.driver.destroy_graph(child)
            finally:
                self.driver.destroy_stream(stream)

    def eager(self, count: int | None) -> None:
        """Issue everything now."""

        def run(op: Op, stream: str) -> None:
            handle = self.queues.streams[stream]
            if isinstance(op.work, Extern):
                self.call_extern(op, handle)
            for call in self.work.calls(op, count):
                self.enqueue(call, handle)

        self.issue(self.schedule.instructions, run, ignore, ignore)

    def instructions_of(self, unit: Unit) -> Iterator[Instruction]:
        own = {stream.name for stream in self.schedule.streams if stream.device in unit.devices}
        return (each for each in self.schedule.instructions if each.stream in own)

    def issue(
        self,
        instructions: Iterable[Instruction],
        run: Callable[[Op, str], None],
        record: Callable[[str, str], None],
        wait: Callable[[str, str], None],
    ) -> None:
        """Go through the instructions; the callables hear of each, inside its device's context."""
        ops = {op.name: op for op in self.work.program}
        contexts = {s.name: self.gpus[s.device].context for s in self.schedule.streams}
        for each in instructions:
            stream = self.queues.streams[each.stream]
            with current(self.driver, contexts[each.stream]):
                match each.kind:
                    case "run":
                        with for_op(ops[each.op]):
                            run(ops[each.op], each.stream)
                    case "record":
                        self.driver.record(self.queues.events[each.event], stream)
                        record(each.stream, each.event)
                    case "wait":
                        self.driver.wait(stream, self.queues.events[each.event])
                        wait(each.stream, each.event)
                    case "sync":
                        raise error(
                            "host-step",
                            "the schedule waits on the host: it can be checked, not run",
                            each.span,
                        )

    def enqueue(self, call: Call, stream: int) -> None:
        match call:
            case KernelCall():
                self.driver.launch(call, stream)
            case CopyCall():
                self.driver.copy(call, stream)
            case FillCall():
                self.driver.fill(call, stream)
            case MemoryOpsCall():
                self.driver.memory_ops(call, stream)

    def call_extern(self, op: Op, stream: int) -> None:
        """Let the op's function enqueue its work: see ``graphc.backends.extern``."""
        arrays = {each.argument: self.argument(each.region.buffer) for each in op.accesses}
        assert isinstance(op.work, Extern)
        with calling(f"extern '{op.work.function}'", op.work.function, op):
            call_function(
                self.functions[op.step],
                op,
                arrays,
                capacity=self.work.program.capacity,
                count=self.gpus[op.device].count_word,
                stream=stream,
            )

    def device_of(self, stream: str) -> str:
        for each in self.schedule.streams:
            if each.name == stream:
                return each.device
        raise CompilerBug("emit", f"no stream is named '{stream}'")


def ignore(stream: str, event: str) -> None:
    """What has no meaning outside of a capture."""


@contextmanager
def for_op(op: Op) -> Iterator[None]:
    """Name the op in what the driver refuses."""
    try:
        yield
    except CudaError as problem:
        if problem.op is not None:
            raise
        raise CudaError(
            problem.call, problem.error, problem.explanation, op=op.name, span=op.span
        ) from None


def prioritised(schedule: Schedule) -> dict[str, int]:
    """Op -> priority of its stream."""
    of_stream = {stream.name: stream.priority for stream in schedule.streams}
    return {each.op: of_stream[each.stream] for each in schedule.instructions if each.kind == "run"}
