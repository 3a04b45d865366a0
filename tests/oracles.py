"""Slow and plain versions of what the compiler computes: all pairs, closures, a toy memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from random import Random

import numpy as np

from graphc.dtypes import dtype
from graphc.ir import (
    Access,
    Buffer,
    Extern,
    Graph,
    Kernel,
    Memory,
    Mode,
    Op,
    Program,
    Record,
    Role,
    RowsKind,
    Run,
    Schedule,
    Slot,
    Wait,
)

# Hazards


def origin_of(buffers: Mapping[str, Buffer], name: str) -> tuple[str, int]:
    offset, buffer = 0, buffers[name]
    while buffer.overlay is not None:
        offset += buffer.overlay[1]
        buffer = buffers[buffer.overlay[0]]
    return buffer.name, offset


def layout(program: Program) -> dict[str, Slot]:
    """Every buffer in memory of its own, overlays on their bases."""
    return {name: Slot(*origin_of(program.buffers, name)) for name in program.buffers}


def commute(program: Program, one: Op, two: Op, first: Access, second: Access) -> bool:
    if first.mode is Mode.READ and second.mode is Mode.READ:
        return True
    if first.region.buffer != second.region.buffer or first.mode is not second.mode:
        return False
    if first.argument != second.argument:
        return False
    if first.mode is Mode.SCATTER:
        return one.kin == two.kin
    if not is_same_function(one, two):
        return False
    kind = program.buffers[first.region.buffer].dtype
    return first.mode is Mode.ACCUMULATE and not dtype(kind).is_float


def is_same_function(one: Op, two: Op) -> bool:
    match one.work, two.work:
        case Kernel(template, _, options, scalars), Kernel(other, _, choices, values):
            return (template, options, scalars) == (other, choices, values)
        case Extern(), Extern():
            return one.work == two.work
        case _:
            # As steps, but that of another replay is the same function.
            return one.step.rstrip("'") == two.step.rstrip("'")


def share(program: Program, slots: Mapping[str, Slot], first: Access, second: Access) -> bool:
    """Whether two accesses may touch the same bytes, for any count."""
    if first.region.start == first.region.stop or second.region.start == second.region.stop:
        return False
    if first.region.buffer == second.region.buffer:
        return first.region.overlaps(second.region)
    one, two = program.buffers[first.region.buffer], program.buffers[second.region.buffer]
    here, there = slots[one.name], slots[two.name]
    if here.allocation != there.allocation:
        return False
    ours, theirs = (0, one.nbytes), (0, two.nbytes)
    if not one.per_count and not two.per_count:
        ours = first.region.start, first.region.stop
        theirs = second.region.start, second.region.stop
    return (
        here.offset + ours[0] < there.offset + theirs[1]
        and there.offset + theirs[0] < here.offset + ours[1]
    )


def in_conflict(program: Program, slots: Mapping[str, Slot], one: Op, two: Op) -> bool:
    return any(
        share(program, slots, first, second) and not commute(program, one, two, first, second)
        for first in one.accesses
        for second in two.accesses
    )


def conflict_within_steps(program: Program) -> set[str]:
    slots = layout(program)
    return {
        one.step
        for one, two in combinations(program.ops, 2)
        if one.step == two.step and in_conflict(program, slots, one, two)
    }


def conflict_within_kin(program: Program) -> bool:
    """Whether two pieces or ranks of one op meet where they must not."""
    slots = layout(program)
    return any(
        one.kin == two.kin and in_conflict(program, slots, one, two)
        for one, two in combinations(program.ops, 2)
    )


def hazard_pairs(program: Program) -> set[tuple[str, str]]:
    """All pairs that must be ordered: conflicts in program order, and `after`."""
    slots = layout(program)
    pairs = {
        (one.name, two.name)
        for one, two in combinations(program.ops, 2)
        if in_conflict(program, slots, one, two)
    }
    for op in program:
        for name in op.placement.after:
            pairs |= {
                (other.name, op.name)
                for other in program
                if (other.step == name or other.step.startswith(name + "/"))
                and other.step != op.step
            }
    return pairs


# Closures


def closure(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Node -> all nodes behind it."""
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for one, two in edges:
        after[one].append(two)
    result = {}
    for node in after:
        seen: set[str] = set()
        todo = [node]
        while todo:
            for other in after[todo.pop()]:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        result[node] = seen
    return result


def ordered_pairs(graph: Graph, program: Program) -> set[tuple[str, str]]:
    """The closure of the graph between the ops of the program, joins left out."""
    names = {op.name for op in program}
    behind = closure(graph.edges.nodes, graph.edges.edges)
    return {(one, two) for one in names for two in behind[one] & names}


# Races


def happens_before(schedule: Schedule, replays: int = 2) -> dict[str, set[str]]:
    """Streams, events and the caller, unrolled; nodes are "replay:op", "replay:begin", ..."""
    nodes: list[str] = []
    edges: list[tuple[str, str]] = []
    last: dict[str, list[str]] = {each.name: [] for each in schedule.streams}
    events: dict[str, list[str]] = {}

    def add(node: str, stream: str) -> None:
        nodes.append(node)
        edges.extend((other, node) for other in last[stream])
        last[stream] = [node]

    for replay in range(replays):
        add(f"{replay}:begin", schedule.origin)
        for each in schedule.instructions:
            match each:
                case Run(stream, op):
                    add(f"{replay}:{op}", stream)
                case Record(stream, event):
                    events[event] = list(last[stream])
                case Wait(stream, event):
                    last[stream] = last[stream] + events[event]
        add(f"{replay}:end", schedule.origin)
    return closure(nodes, edges)


def has_race(schedule: Schedule) -> bool:
    """Whether any pair of conflicting accesses, in two replays, is not ordered as it should be."""
    program, slots = schedule.program, schedule.memory.slots
    behind = happens_before(schedule)
    caller = [caller_op(program, is_begin=True), *program.ops, caller_op(program, is_begin=False)]
    serial = [(f"{replay}:{op.name}", op) for replay in range(2) for op in caller]
    for (one, first), (two, second) in combinations(serial, 2):
        if two in behind[one]:
            continue
        same = one.split(":")[0] == two.split(":")[0]
        step = second if same else rename(second)
        if in_conflict(program, slots, first, step):
            return True
    ends = {f"0:{op.name}" for op in program}
    return not all(name in behind["0:begin"] and "0:end" in behind[name] for name in ends)


def rename(op: Op) -> Op:
    """The same op as a step of another replay: scatters of two replays do conflict."""
    return Op(op.name, op.step + "'", op.device, op.work, op.accesses)


def caller_op(program: Program, *, is_begin: bool) -> Op:
    roles = (
        (Role.INPUT, Role.INOUT, Role.WEIGHT, Role.STATE)
        if is_begin
        else (Role.OUTPUT, Role.INOUT, Role.STATE, Role.STATUS)
    )
    accesses = []
    for name, buffer in program.buffers.items():
        if buffer.role in roles:
            stop = buffer.nominal_rows(program.nominal) * buffer.row_nbytes
            region = program.ops[0].accesses[0].region if program.ops else None
            assert region is not None
            mode = Mode.WRITE if is_begin else Mode.READ
            accesses.append(Access("caller", type(region)(name, 0, stop), mode))
    name = "begin" if is_begin else "end"
    work = program.ops[0].work
    return Op(name, f"caller {name}", "caller", work, tuple(accesses))


# A toy machine


def real_bytes(program: Program, op: Op, access: Access, count: int | None) -> tuple[int, int]:
    """The bytes of its buffer that an access touches in a launch with that count."""
    buffer = program.buffers[access.region.buffer]
    if not buffer.per_count or count is None:
        return access.region.start, access.region.stop
    rows = access.rows
    first, last = op.piece.start, op.piece.stop
    if rows.kind in (RowsKind.ALL, RowsKind.GATHER, RowsKind.PIECE):
        first, last = op.piece.start * 0, op.piece.stop * 0 + 1
    elif rows.kind is RowsKind.BLOCKS:
        first = max((each for each in rows.blocks if each <= first), default=rows.blocks[0])
        last = min((each for each in rows.blocks if each >= last), default=rows.blocks[-1])
    unit = buffer.per_count * buffer.row_nbytes
    return int(count * first) * unit, int(count * last) * unit


Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class Machine:
    """Memory under some layout, and ops with a made-up but deterministic meaning."""

    def __init__(self, program: Program, memory: Memory, count: int | None, poison: int) -> None:
        self.program, self.count, self.slots = program, count, memory.slots
        self.arrays: dict[str, Bytes] = {
            each.name: np.full(each.nbytes, poison, np.uint8) for each in memory.allocations
        }
        for name, buffer in program.buffers.items():
            if buffer.role is not Role.SCRATCH and name in self.slots:
                rng = np.random.default_rng(zlib.crc32(name.encode()))
                self.view(name)[:] = rng.integers(0, 256, buffer.nbytes, np.uint8)

    def view(self, name: str) -> Bytes:
        slot = self.slots[name]
        buffer = self.program.buffers[name]
        return self.arrays[slot.allocation][slot.offset : slot.offset + buffer.nbytes]

    def bytes_of(self, op: Op, access: Access) -> Bytes:
        start, stop = real_bytes(self.program, op, access, self.count)
        return self.view(access.region.buffer)[start:stop]

    def run(self, op: Op) -> None:
        seed = zlib.crc32(op.name.encode())
        for access in op.accesses:
            if access.mode is Mode.READ:
                seed = zlib.crc32(self.bytes_of(op, access).tobytes(), seed)
        for access in op.accesses:
            if access.mode is not Mode.READ:
                self.write(op, access, zlib.crc32(access.argument.encode(), seed))

    def write(self, op: Op, access: Access, seed: int) -> None:
        target = self.bytes_of(op, access)
        pattern = np.random.default_rng(seed).integers(0, 256, len(target), np.uint8)
        match access.mode:
            case Mode.SCATTER:
                first, _ = real_bytes(self.program, op, access, self.count)
                of, index = op.piece.of, op.piece.index
                if op.family:
                    rank = int(op.step.split("/")[0].removeprefix("rank."))
                    of, index = of * len(self.program.rank_devices), of * rank + index
                mine = (first + np.arange(len(target))) % of == index
                target[mine] = pattern[mine]
            case Mode.ACCUMULATE if not dtype(
                self.program.buffers[access.region.buffer].dtype
            ).is_float:
                accumulate(op, target, pattern)
            case Mode.UPDATE | Mode.ACCUMULATE:
                target *= np.uint8(3)
                target ^= pattern
            case _:
                target[:] = pattern

    def outcome(self) -> dict[str, bytes]:
        return {
            name: self.view(name).tobytes()
            for name, buffer in self.program.buffers.items()
            if buffer.role in (Role.OUTPUT, Role.INOUT, Role.STATE, Role.STATUS)
            and name in self.slots
        }


def accumulate(op: Op, target: Bytes, pattern: Bytes) -> None:
    """Free of order among calls of one kernel with the same options, and with nothing else."""
    match op.work:
        case Kernel("greatest"):
            np.maximum(target, pattern, out=target)
        case Kernel(_, _, options) if options["bits"]:
            target ^= pattern
        case _:
            target += pattern


def interleaving(schedule: Schedule, rng: Random) -> Iterator[str]:
    """Ops in any order that streams and events allow."""
    queues: dict[str, list[tuple[str, str, int]]] = {each.name: [] for each in schedule.streams}
    latest: dict[str, int] = {}
    for number, each in enumerate(schedule.instructions):
        match each:
            case Run(stream, op):
                queues[stream].append(("run", op, number))
            case Record(stream, event):
                latest[event] = number
                queues[stream].append(("record", event, number))
            case Wait(stream, event):
                queues[stream].append(("wait", event, latest[event]))
    done: set[int] = set()
    while any(queues.values()):
        able = [
            queue
            for queue in queues.values()
            if queue and (queue[0][0] != "wait" or queue[0][2] in done)
        ]
        assert able, "the schedule is stuck"
        kind, name, number = rng.choice(able).pop(0)
        done.add(number)
        if kind == "run":
            yield name


def topological(
    nodes: Sequence[str], edges: Iterable[tuple[str, str]], rng: Random
) -> Iterator[str]:
    """Nodes in any order that the edges allow."""
    before = dict.fromkeys(nodes, 0)
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for one, two in edges:
        before[two] += 1
        after[one].append(two)
    ready = [node for node in nodes if not before[node]]
    while ready:
        node = ready.pop(rng.randrange(len(ready)))
        yield node
        for other in after[node]:
            before[other] -= 1
            if not before[other]:
                ready.append(other)
