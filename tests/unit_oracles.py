"""Races of divided schedules, slow and plain: all pairs, an explicit event graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import lcm
from typing import TypeAlias

from oracles import is_same_function

from graphc.dtypes import dtype
from graphc.ir import (
    Access,
    Await,
    Begin,
    Buffer,
    LaunchContract,
    Mode,
    Op,
    Opaque,
    Record,
    Role,
    Run,
    Schedule,
    Signal,
    Wait,
)
from graphc.regions import Region

LAUNCHES = 3
Node: TypeAlias = tuple[int, str]  # launch, op
FILLED = (Role.INPUT, Role.INOUT, Role.WEIGHT)
FETCHED = (Role.OUTPUT, Role.INOUT)


class Oracle:
    """The verdict over all sequences of launches; what must be ordered is found once."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        turns = product(range(len(schedules)), repeat=LAUNCHES)
        self.demands = {turn: demands([schedules[n] for n in turn]) for turn in turns}

    def has_race(self, schedules: Sequence[Schedule], order: str = "streams") -> bool:
        """Whether these schedules, of the same ops, leave a pair unordered that must be ordered."""
        return any(
            not is_ordered([schedules[n] for n in turn], pairs, order)
            for turn, pairs in self.demands.items()
        )


def is_ordered(
    launches: Sequence[Schedule], pairs: Sequence[tuple[Node, Node]], order: str = "streams"
) -> bool:
    before = event_graph(launches) if order == "streams" else edge_graph(launches)
    places = {node: place for place, node in enumerate(before)}
    reach: list[int] = []
    for nodes in before.values():
        known = 0
        for node in nodes:
            known |= reach[places[node]] | 1 << places[node]
        reach.append(known)
    return all(reach[places[two]] >> places[one] & 1 for one, two in pairs)


# The event graph


def callers(schedule: Schedule) -> list[tuple[str, tuple[str, ...]]]:
    """Who begins and ends the launch, and on which streams: one for all units, or each alone."""
    every = tuple((each.name, (each.origin,)) for each in schedule.units)
    if schedule.launch is LaunchContract.FREE and len(every) > 1:
        return list(every)
    return [("", tuple(origin for _, (origin,) in every) or (schedule.origin,))]


def event_graph(launches: Sequence[Schedule]) -> dict[Node, set[Node]]:
    """Every node and those right before it, in an order in which they can run."""
    before: dict[Node, set[Node]] = {}
    for turn, schedule in enumerate(launches):
        ops = {op.name: op for op in schedule.program.ops}
        last: dict[str, set[Node]] = {each.name: set() for each in schedule.streams}
        events: dict[str, set[Node]] = {}
        for unit, origins in callers(schedule):
            ends = {(turn - 1, f"end {unit}")} if turn else set()
            before[turn, f"begin {unit}"] = ends
            last.update((origin, {(turn, f"begin {unit}")}) for origin in origins)
        for each in schedule.instructions:
            if isinstance(each, Record):
                events[each.event] = last[each.stream]
            elif isinstance(each, Wait):
                last[each.stream] = last[each.stream] | events[each.event]
            elif isinstance(each, Run):
                node = turn, each.op
                before[node] = last[each.stream] | set(heard(launches, turn, ops[each.op]))
                last[each.stream] = {node}
        for unit, origins in callers(schedule):
            before[turn, f"end {unit}"] = {node for origin in origins for node in last[origin]}
    return before


def edge_graph(launches: Sequence[Schedule]) -> dict[Node, set[Node]]:
    """The same of schedules that are built of their edges alone."""
    before: dict[Node, set[Node]] = {}
    for turn, schedule in enumerate(launches):
        unit_of = {device: unit.name for unit in schedule.units for device in unit.devices}
        names = [name for name, _ in callers(schedule)]
        for name in names:
            before[turn, f"begin {name}"] = {(turn - 1, f"end {name}")} if turn else set()
        for op in schedule.program.ops:
            own = unit_of.get(op.device, "")
            own = own if own in names else ""
            nodes = {(turn, one) for one, two in schedule.edges if two == op.name}
            before[turn, op.name] = (nodes or {(turn, f"begin {own}")}) | set(
                heard(launches, turn, op)
            )
        for name in names:
            own_ops = [
                (turn, op.name)
                for op in schedule.program.ops
                if not name or unit_of[op.device] == name
            ]
            before[turn, f"end {name}"] = {(turn, f"begin {name}"), *own_ops}
    return before


def heard(launches: Sequence[Schedule], turn: int, op: Op) -> Iterator[Node]:
    """The signals that an await has waited for."""
    for each in op.work.signals if isinstance(op.work, Await) else ():
        turns = range(turn - 1, -1, -1) if each.is_handshake else (turn,)
        sender = next((one for one in turns if launches[one].entry == each.entry), None)
        for other in launches[sender].program.ops if sender is not None else ():
            if isinstance(other.work, Signal) and other.work.signal == each.signal:
                assert sender is not None
                yield sender, other.name


# What must be ordered


def demands(launches: Sequence[Schedule]) -> list[tuple[Node, Node]]:
    """All pairs of conflicting accesses, and every op within its unit's launch."""
    pairs = list(contained(launches))
    touches = [each for turn, schedule in enumerate(launches) for each in touched(schedule, turn)]
    nominal = lcm(*(each.program.nominal for each in launches))
    for (one, op, first), (two, other, second) in combinations(touches, 2):
        if one == two:
            continue
        here, there = launches[one[0]], launches[two[0]]
        if not commute(here, op, first, other, second, is_same_launch=one[0] == two[0]) and meet(
            here, first, there, second, nominal
        ):
            pairs.append((one, two))
    return list(dict.fromkeys(pairs))


def contained(launches: Sequence[Schedule]) -> Iterator[tuple[Node, Node]]:
    for turn, schedule in enumerate(launches):
        unit_of = {device: unit.name for unit in schedule.units for device in unit.devices}
        names = [name for name, _ in callers(schedule)]
        begins = {unit_of[op.device]: op for op in schedule.program if isinstance(op.work, Begin)}
        for op in schedule.program.ops:
            unit = unit_of.get(op.device, "")
            caller = unit if unit in names else ""
            yield (turn, f"begin {caller}"), (turn, op.name)
            yield (turn, op.name), (turn, f"end {caller}")
            if begins and begins[unit] is not op:
                yield (turn, begins[unit].name), (turn, op.name)


def touched(schedule: Schedule, turn: int) -> Iterator[tuple[Node, Op, Access]]:
    """All accesses of a launch in the order of the program, the callers' first and last."""
    everyone = [
        *(caller_op(schedule, unit, is_begin=True) for unit, _ in callers(schedule)),
        *schedule.program.ops,
        *(caller_op(schedule, unit, is_begin=False) for unit, _ in callers(schedule)),
    ]
    for op in everyone:
        for access in op.accesses:
            if access.region.nbytes:
                yield (turn, op.name), op, access


def caller_op(schedule: Schedule, unit: str, *, is_begin: bool) -> Op:
    roles = FILLED if is_begin else FETCHED
    if not unit:
        roles = (*roles, Role.STATE) if is_begin else (*roles, Role.STATE, Role.STATUS)
    devices = next((each.devices for each in schedule.units if each.name == unit), None)
    accesses = []
    for name, buffer in schedule.program.buffers.items():
        if buffer.role in roles and (devices is None or buffer.device in devices):
            stop = buffer.nominal_rows(schedule.program.nominal) * buffer.row_nbytes
            mode = Mode.WRITE if is_begin else Mode.READ
            accesses.append(Access("caller", Region(name, 0, stop), mode))
    name = f"{'begin' if is_begin else 'end'} {unit}"
    return Op(name, name, "caller", Opaque(), tuple(accesses))


def commute(
    schedule: Schedule, op: Op, first: Access, other: Op, second: Access, *, is_same_launch: bool
) -> bool:
    if first.mode is Mode.READ and second.mode is Mode.READ:
        return True
    if (first.region.buffer, first.mode) != (second.region.buffer, second.mode):
        return False
    if first.argument != second.argument:
        return False
    if first.mode is Mode.SCATTER:
        return op.kin == other.kin and is_same_launch
    kind = schedule.program.buffers[first.region.buffer].dtype
    return (
        first.mode is Mode.ACCUMULATE and not dtype(kind).is_float and is_same_function(op, other)
    )


def meet(here: Schedule, first: Access, there: Schedule, second: Access, nominal: int) -> bool:
    """Whether two accesses may touch the same physical bytes, at some count."""
    one = here.program.buffers[first.region.buffer]
    two = there.program.buffers[second.region.buffer]
    ours, theirs = here.memory.slots[one.name], there.memory.slots[two.name]
    if ours.allocation != theirs.allocation:
        return False
    low, high = (first.region.start, first.region.stop), (second.region.start, second.region.stop)
    if one.name == two.name and ours == theirs:
        low, high = grown(here, one, low, nominal), grown(there, two, high, nominal)
    elif one.per_count or two.per_count:
        low, high = (0, one.nbytes), (0, two.nbytes)
    return (
        ours.offset + low[0] < theirs.offset + high[1]
        and theirs.offset + high[0] < ours.offset + low[1]
    )


def grown(
    schedule: Schedule, buffer: Buffer, bounds: tuple[int, int], nominal: int
) -> tuple[int, int]:
    by = nominal // schedule.program.nominal if buffer.per_count else 1
    return by * bounds[0], by * bounds[1]
