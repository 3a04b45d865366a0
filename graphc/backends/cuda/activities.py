"""Records of CUPTI -> when each op ran: by the node that a record names, and by nothing else.

A record counts for an op if its node was made of one of the op's nodes *and* it is what that node
does: a kernel of the same grid and block, or a copy of as many bytes. All others are strays, with
the reason; an op's span reaches from the first of its records to the last. That a kernel bears
another name is noted and no more: in a process that has unloaded kernels and loaded others, CUPTI
gives old names to new functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.backends.cuda.emit import Built
from graphc.backends.cuda.executable import Executable
from graphc.backends.cuda.session import Session
from graphc.backends.recording import Recording, Replay, Span, Stray, Way
from graphc.gpu.cupti import Activity, Recorder
from graphc.gpu.protocol import Call, CopyCall, FillCall, KernelCall, NodeKind
from graphc.ir import Extern
from graphc.text.diagnostics import CudaError

ONE_CLOCK = "CUPTI brings the times of all GPUs onto the host's clock; how well, it does not say"


def record_by_cupti(
    session: Session, recorder: Recorder, rows: int | None, rounds: int
) -> Recording:
    """Build the graphs once more while CUPTI looks on, and replay these."""
    stream, context = session.own_stream, session.home.context
    own = Executable(session)
    recorder.start()
    try:
        own.ensure_built(rows)
        own.set_rows(rows, stream, context)
        launch = own.launcher(rows, stream, context)

        def replay() -> None:
            launch()
            session.driver.synchronize(stream)

        session.wait_for_all()
        expected = {
            node: each
            for number, graph in enumerate(own.graphs)
            if graph.built is not None
            for node, each in expected_nodes(session, graph.built, number, rows)
        }
        found = record_replays(recorder, replay, expected, rounds=rounds)
    finally:
        recorder.stop()
        own.drop()
    seen = {op for each in found.replays for op in each.spans}
    wanted = dict.fromkeys(each.op for each in expected.values())
    missing = tuple(op for op in wanted if op not in seen)
    return replace(found, clocks=dict.fromkeys(session.gpus, ONE_CLOCK), missing=missing)


def expected_nodes(
    session: Session, built: Built, unit: int, rows: int | None
) -> Iterator[tuple[int, Expected]]:
    images, keys = session.kernels.images, session.variant.images
    for op in session.schedule.program:
        entry = images[keys[op.step]].entry if op.step in keys else ""
        nodes = built.nodes.get(op.name, ())
        if isinstance(op.work, Extern):
            yield from ((node, Expected(op.name, unit, NodeKind.OTHER)) for node in nodes)
            continue
        for node, call in zip(nodes, session.work.calls(op, rows), strict=False):
            expected = expected_of(op.name, unit, call, entry)
            if expected is not None:
                yield node, expected


@dataclass(frozen=True, slots=True)
class Expected:
    """What one node of the graph does, and for which op."""

    op: str
    unit: int  # the number of the graph
    kind: NodeKind
    entry: str = ""  # of a kernel; empty where it is not known
    shape: tuple[int, ...] = ()  # of a kernel: grid and block
    nbytes: int | None = None  # of a copy or fill; None where any will do


def expected_of(op: str, unit: int, call: Call, entry: str) -> Expected | None:
    """What the records of a node should say; None if it has none."""
    match call:
        case KernelCall():
            return Expected(op, unit, NodeKind.KERNEL, entry, (*call.grid, *call.block))
        case CopyCall():
            return Expected(op, unit, NodeKind.COPY, nbytes=call.nbytes)
        case FillCall():
            return Expected(op, unit, NodeKind.FILL)
        case _:
            return None


def record_replays(
    recorder: Recorder,
    replay: Callable[[], None],
    expected: Mapping[int, Expected],
    *,
    rounds: int,
) -> Recording:
    """Replay some times, after one that warms up, and match what was recorded.

    ``expected`` is by node of the graph that was instantiated while ``recorder`` was at work.
    """
    before = len(recorder.drain())
    for _ in range(rounds + 1):
        replay()
    records = recorder.drain()[before:]
    nodes = recorder.node_ids(list(expected))
    by_node = {made: expected[node] for made, node in nodes.items()}
    launches = matched(records, by_node)
    replays = tuple(each for each in launches if each.spans)[1:]
    others = [stray for each in launches if not each.spans for stray in each.strays]
    if not replays:
        raise unmatched(others, len(records))
    notes = (
        *notes_of(recorder.dropped(), others, len(replays), rounds),
        *renamed(records, by_node),
    )
    return Recording(Way.CUPTI, replays, {}, notes)


def unmatched(others: Sequence[Stray], records: int) -> CudaError:
    first = f"; the first is a {others[0].what}: {others[0].why}" if others else ""
    return CudaError(
        "CUPTI",
        "NO_RECORDS",
        f"{records} records came, and none that names a node of the graph{first}",
        hint="trace by events instead (--by events)",
    )


def notes_of(dropped: int, others: Sequence[Stray], found: int, rounds: int) -> Iterator[str]:
    if dropped:
        yield f"CUPTI dropped {dropped} records for want of space"
    if found < rounds:
        yield f"records of {found} replays came, where {rounds} were made"
    if others:
        yield (
            f"{len(others)} records are of launches that are not this graph's, "
            f"such as a {others[0].what}"
        )


def matched(records: Iterable[Activity], expected: Mapping[int, Expected]) -> list[Replay]:
    """The replays of which records came, in order of time.

    A launch of a graph has a number of its own, which all of its records bear. Every replay
    launches each unit's graph once, so the launches of a unit are the replays in their order.
    """
    launches: dict[int, list[Activity]] = {}
    for each in sorted(records, key=lambda each: each.start_ns):
        launches.setdefault(each.launch, []).append(each)
    seen: Counter[int] = Counter()  # launches of each unit so far
    replays: dict[int, list[Activity]] = {}
    others: list[list[Activity]] = []
    for own in launches.values():
        unit = next((expected[each.node].unit for each in own if each.node in expected), None)
        if unit is None:
            others.append(own)
            continue
        replays.setdefault(seen[unit], []).extend(own)
        seen[unit] += 1
    return [replay_of(own, expected) for own in (*replays.values(), *others)]


def replay_of(records: Sequence[Activity], expected: Mapping[int, Expected]) -> Replay:
    """What one replay ran; its first record is the beginning."""
    begin_ns = min(each.start_ns for each in records)
    spans: dict[str, Span] = {}
    strays = []
    for each in sorted(records, key=lambda each: each.start_ns):
        span = Span((each.start_ns - begin_ns) / 1000, (each.stop_ns - begin_ns) / 1000)
        why = why_not(each, expected.get(each.node))
        if why is not None:
            strays.append(Stray(text_of(each), why, each.device, span.start_us, span.stop_us))
            continue
        op = expected[each.node].op
        first = spans.get(op, span)
        spans[op] = Span(first.start_us, max(first.stop_us, span.stop_us))
    return Replay(spans, tuple(strays))


def why_not(record: Activity, expected: Expected | None) -> str | None:
    """Why a record cannot be counted for the op that its node belongs to."""
    if expected is None:
        return "it names no node" if not record.node else "its node belongs to no op"
    if record.stop_ns <= 0 or record.stop_ns < record.start_ns:
        return "it has no times"
    if expected.kind is NodeKind.OTHER:
        return None
    if record.kind is not expected.kind:
        return f"its node is the {expected.kind} of '{expected.op}'"
    if expected.shape and record.shape != expected.shape:
        planned, found = shape_text(expected.shape), shape_text(record.shape)
        return f"its node is '{expected.op}', a kernel of {planned}, and this one has {found}"
    if expected.nbytes is not None and record.nbytes != expected.nbytes:
        return f"its node is '{expected.op}', of {expected.nbytes} bytes"
    return None


def shape_text(shape: tuple[int, ...]) -> str:
    """
    >>> shape_text((132, 1, 1, 256, 1, 1))
    '132x1x1 blocks of 256x1x1 threads'
    """
    grid, block = ("x".join(map(str, part)) for part in (shape[:3], shape[3:]))
    return f"{grid} blocks of {block} threads"


def renamed(records: Iterable[Activity], expected: Mapping[int, Expected]) -> Iterator[str]:
    """The kernels that count for an op and bear another name than the plan's."""
    names = {}
    for each in records:
        planned = expected.get(each.node)
        if planned is None or not planned.entry or why_not(each, planned) is not None:
            continue
        if each.what != planned.entry:
            names[planned.op] = (planned.entry, each.what)
    if names:
        op, (planned_name, found) = next(iter(names.items()))
        yield (
            f"CUPTI calls the kernels of {len(names)} ops otherwise than the plan, such as "
            f"{planned_name} of '{op}', which it calls {found}: they count by node and shape"
        )


def text_of(record: Activity) -> str:
    if record.kind is NodeKind.KERNEL:
        return f"kernel {record.what}"
    return f"{record.kind} of {record.nbytes} bytes"
