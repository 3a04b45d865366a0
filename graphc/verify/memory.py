"""Buffers that share physical bytes: in use one after the other, and ordered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from graphc.ir import Schedule
from graphc.text.diagnostics import Diagnostic
from graphc.verify.sweep import Sweep, Touch
from graphc.verify.trace import Trace


@dataclass(slots=True, eq=False)
class Occupant:
    """A buffer on its bytes: all accesses, and the latest of them on each chain."""

    name: str
    base: str  # over which it lies in the end, or itself
    start: int
    stop: int
    is_counted: bool
    touches: list[Touch]
    actions: tuple[int, ...]
    tails: dict[int, int]
    behind: list[Occupant] = field(default_factory=list)  # those wholly before it


Held: TypeAlias = list[tuple[int, int, tuple[Occupant, ...]]]


def sweep_memory(sweep: Sweep, schedule: Schedule, touches: Mapping[str, list[Touch]]) -> None:
    """Check the accesses of different buffers over the same physical bytes."""
    for group in overlapping(schedule, touches):
        occupants = [occupant(sweep.trace, schedule, name, touches[name]) for name in group]
        occupants.sort(key=lambda each: sweep.trace.actions[each.actions[0]].rank)
        held: list[tuple[int, int, tuple[Occupant, ...]]] = []
        for new in occupants:
            held = settle(sweep, held, new)


def overlapping(schedule: Schedule, touches: Mapping[str, object]) -> Iterator[list[str]]:
    """Groups of touched buffers that hang together by shared physical bytes."""
    slots, buffers = schedule.memory.slots, schedule.program.buffers
    placed = sorted(
        (slots[name].allocation, slots[name].offset, name)
        for name in touches
        if buffers[name].nbytes
    )
    group: list[str] = []
    allocation, reached = "", 0
    for where, offset, name in placed:
        if where != allocation or offset >= reached:
            if len(group) > 1:
                yield group
            group, allocation, reached = [], where, offset
        group.append(name)
        reached = max(reached, offset + buffers[name].nbytes)
    if len(group) > 1:
        yield group


def occupant(trace: Trace, schedule: Schedule, name: str, touches: list[Touch]) -> Occupant:
    buffer, slot = schedule.program.buffers[name], schedule.memory.slots[name]
    actions = tuple(dict.fromkeys(each.action for each in touches))
    tails: dict[int, int] = {}
    for number in actions:
        action = trace.actions[number]
        tails[action.chain] = max(tails.get(action.chain, -1), action.position)
    stop = slot.offset + buffer.nbytes
    base = base_of(schedule, name)
    return Occupant(name, base, slot.offset, stop, bool(buffer.per_count), touches, actions, tails)


def settle(sweep: Sweep, held: Held, new: Occupant) -> Held:
    """Put a buffer on its bytes, after checking it against all those that it may meet there."""
    result: Held = []
    checked: set[str] = set()
    free = new.start
    for start, stop, owners in held:
        low, high = max(start, new.start), min(stop, new.stop)
        if low >= high:
            result.append((start, stop, owners))
            continue
        stay = tuple(each for each in owners if not clear(sweep, each, new, checked))
        pieces = (start, low, owners), (low, high, (*stay, new)), (high, stop, owners)
        result += (piece for piece in pieces if piece[0] < piece[1])
        if free < low:
            result.append((free, low, (new,)))
        free = high
    if free < new.stop:
        result.append((free, new.stop, (new,)))
    return sorted(result, key=lambda each: each[0])


def clear(sweep: Sweep, old: Occupant, new: Occupant, checked: set[str]) -> bool:
    """Whether all accesses of the old buffer are before all of the new; if not, compare them."""
    if is_wholly_before(sweep.trace, old, new):
        if old not in new.behind:
            new.behind.append(old)
        return True
    if old.name not in checked:
        checked.add(old.name)
        compare(sweep, old, new)
        # What gave way to the old buffer may still meet this one.
        for each in old.behind:
            if each.start < new.stop and new.start < each.stop:
                clear(sweep, each, new, checked)
    return False


def is_done_before(trace: Trace, old: Occupant, new: Occupant) -> bool:
    """Whether the program, in its order, is done with the old buffer before it uses the new."""
    last = max(trace.actions[number].rank for number in old.actions)
    return last < trace.actions[new.actions[0]].rank


def is_wholly_before(trace: Trace, old: Occupant, new: Occupant) -> bool:
    if not is_done_before(trace, old, new):
        return False
    tails = old.tails.items()
    return all(
        trace.actions[number].clock.get(chain, -1) >= position
        for number in new.actions
        for chain, position in tails
    )


def compare(sweep: Sweep, old: Occupant, new: Occupant) -> None:
    """All pairs of conflicting accesses of two buffers must be ordered as the program has them."""
    if old.base != new.base and not is_done_before(sweep.trace, old, new):
        text = f"buffers '{old.name}' and '{new.name}' share memory, and both are in use at once"
        span = sweep.trace.actions[new.touches[0].action].span
        sweep.lost[old.name, new.name] = Diagnostic("bad-schedule", text, span)
    for one in old.touches:
        for two in new.touches:
            if one.action == two.action or not (
                one.access.mode.is_write or two.access.mode.is_write
            ):
                continue
            low, high = shared_bytes(old, one, new, two)
            if low >= high:
                continue
            ranks = sweep.trace.actions
            if ranks[one.action].rank < ranks[two.action].rank:
                sweep.require(one, two, low - new.start, high - new.start)
            else:
                sweep.require(two, one, low - old.start, high - old.start)


def shared_bytes(old: Occupant, one: Touch, new: Occupant, two: Touch) -> tuple[int, int]:
    """The physical bytes that two accesses share: all of the buffers' if the count moves them."""
    if old.is_counted or new.is_counted:
        return max(old.start, new.start), min(old.stop, new.stop)
    ours, theirs = one.access.region, two.access.region
    return (
        max(old.start + ours.start, new.start + theirs.start),
        min(old.start + ours.stop, new.start + theirs.stop),
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
