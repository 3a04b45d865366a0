"""All accesses of some launches, each on the bytes that it touches.

What two launches hold at the same bytes is one home, swept over both. Launches of two entries may
write their regions down at two nominal extents; a common multiple of both serves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from graphc.dtypes import dtype
from graphc.ir import Access, Extern, Kernel, Mode, Op, Role, Schedule
from graphc.regions import Region
from graphc.verify.sweep import Touch
from graphc.verify.trace import ALL_UNITS, Action, Trace

# The one caller of all units has everything while none runs. Beside the units of a `free` launch,
# state and status (and mapped memory) are left to when all of them are idle.
WRITTEN_BY_CALLER = (Role.INPUT, Role.INOUT, Role.WEIGHT, Role.STATE)
READ_BY_CALLER = (Role.OUTPUT, Role.INOUT, Role.STATE, Role.STATUS)
WRITTEN_BESIDE = (Role.INPUT, Role.INOUT, Role.WEIGHT)
READ_BESIDE = (Role.OUTPUT, Role.INOUT)


@dataclass(frozen=True, slots=True)
class Home:
    """A buffer in its place; launches that give it the same bytes share it."""

    name: str
    base: str  # over which it lies in the end, or itself
    allocation: str
    start: int
    stop: int
    counted_nbytes: int  # for each unit of the count; 0: the count does not govern it


def touches_by_home(
    trace: Trace, launches: Sequence[Schedule], *, with_caller: bool
) -> dict[Home, list[Touch]]:
    """All accesses of each buffer, in the order that defines the right result."""
    nominal = lcm(*(each.program.nominal for each in launches))
    found: dict[Home, list[Touch]] = {}
    inside = [Inside(schedule, nominal, found) for schedule in launches]
    for number in sorted(range(len(trace.actions)), key=lambda n: trace.actions[n].place):
        action = trace.actions[number]
        if action.op is not None:
            accesses: Iterable[Access] = action.op.accesses
        else:
            accesses = caller_accesses(action) if with_caller else ()
        for access in accesses:
            if access.region.start < access.region.stop:
                inside[action.replay].add(number, action, access)
    return {home: touches for home, touches in found.items() if touches}


class Inside:
    """The buffers of one launch."""

    def __init__(self, schedule: Schedule, nominal: int, found: dict[Home, list[Touch]]) -> None:
        self.schedule, self.found = schedule, found
        self.growth = nominal // schedule.program.nominal
        self.lists: dict[str, tuple[list[Touch], int, bool]] = {}

    def add(self, number: int, action: Action, access: Access) -> None:
        region = access.region
        touches, growth, is_exact = self.lists.get(region.buffer) or self.enter(region.buffer)
        key = commuting(action, access, is_exact)
        start, stop = region.start * growth, region.stop * growth
        touches.append(Touch(number, access, key, start, stop))

    def enter(self, name: str) -> tuple[list[Touch], int, bool]:
        buffer = self.schedule.program.buffers[name]
        touches = self.found.setdefault(home_of(self.schedule, name), [])
        is_exact = not dtype(buffer.dtype).is_float
        self.lists[name] = touches, self.growth if buffer.per_count else 1, is_exact
        return self.lists[name]


def home_of(schedule: Schedule, name: str) -> Home:
    buffer, slot = schedule.program.buffers[name], schedule.memory.slots[name]
    return Home(
        name,
        base_of(schedule, name),
        slot.allocation,
        slot.offset,
        slot.offset + buffer.nbytes,
        buffer.per_count * buffer.row_nbytes,
    )


def base_of(schedule: Schedule, name: str) -> str:
    """The buffer whose bytes these are in the end."""
    buffers = schedule.program.buffers
    seen = {name}
    while (overlay := buffers[name].overlay) is not None and overlay[0] in buffers:
        name = overlay[0]
        if name in seen:
            break
        seen.add(name)
    return name


def caller_accesses(action: Action) -> Iterator[Access]:
    """What the caller touches; beside one unit of several, what lies on that unit's devices."""
    schedule, is_before = action.schedule, action.is_caller_before
    devices: tuple[str, ...] | None = None
    roles: tuple[Role, ...] = WRITTEN_BY_CALLER if is_before else READ_BY_CALLER
    if action.unit != ALL_UNITS:
        devices = next(each.devices for each in schedule.units if each.name == action.unit)
        roles = WRITTEN_BESIDE if is_before else READ_BESIDE
    for name, buffer in schedule.program.buffers.items():
        if buffer.role not in roles or name not in schedule.memory.slots:
            continue
        if devices is None or buffer.device in devices:
            stop = buffer.nominal_rows(schedule.program.nominal) * buffer.row_nbytes
            mode = Mode.WRITE if is_before else Mode.READ
            yield Access("caller", Region(name, 0, stop), mode)


def commuting(action: Action, access: Access, is_exact: bool) -> object:
    if access.mode is Mode.READ:
        return "read"
    if action.op is None:
        return None
    if access.mode is Mode.SCATTER:
        return action.op.kin, access.argument, action.replay
    if access.mode is Mode.ACCUMULATE and is_exact:
        return "accumulate", access.argument, *operation(action.op)
    return None


def operation(op: Op) -> tuple[object, ...]:
    """What decides how an op combines values: two kernels may do it in two ways."""
    work = op.work
    if isinstance(work, Kernel):
        return work.template, frozenset(work.options.items()), frozenset(work.scalars.items())
    if isinstance(work, Extern):
        return work.function, work.reference, frozenset(work.scalars.items())
    return (op.step,)
