"""Buffers that share physical bytes: in use one after the other, and ordered.

They conflict by their exact bytes if both are fixed, as wholes if the count governs either. Where
all accesses of one are before all of the other nothing more is to be shown; else all pairs are
compared. Order alone would not keep bytes from being overwritten before they are read: so buffers
over one memory are in use one after the other, in each launch. Overlays are exempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from graphc.text.diagnostics import Diagnostic
from graphc.verify.accesses import Home
from graphc.verify.sweep import Sweep, Touch
from graphc.verify.trace import Trace


@dataclass(slots=True, eq=False)
class Occupant:
    """A buffer on its bytes in one launch: all accesses, and the latest of them on each chain."""

    home: Home
    touches: list[Touch]
    actions: tuple[int, ...]
    tails: dict[int, int]
    behind: list[Occupant] = field(default_factory=list)  # those wholly before it

    @property
    def start(self) -> int:
        return self.home.start

    @property
    def stop(self) -> int:
        return self.home.stop


Held: TypeAlias = list[tuple[int, int, tuple[Occupant, ...]]]


def sweep_memory(sweep: Sweep, touches: Mapping[Home, list[Touch]]) -> None:
    """Check the accesses of different buffers over the same physical bytes."""
    for group in overlapping(touches):
        occupants = [each for home in group for each in occupy(sweep.trace, home, touches[home])]
        occupants.sort(key=lambda each: sweep.trace.actions[each.actions[0]].place)
        held: Held = []
        for new in occupants:
            held = settle(sweep, held, new)


def overlapping(homes: Mapping[Home, object]) -> Iterator[list[Home]]:
    """Groups of touched buffers that hang together by shared physical bytes."""
    placed = sorted(
        (home for home in homes if home.start < home.stop),
        key=lambda home: (home.allocation, home.start, home.name),
    )
    group: list[Home] = []
    allocation, reached = "", 0
    for home in placed:
        if home.allocation != allocation or home.start >= reached:
            if len(group) > 1:
                yield group
            group, allocation, reached = [], home.allocation, home.start
        group.append(home)
        reached = max(reached, home.stop)
    if len(group) > 1:
        yield group


def occupy(trace: Trace, home: Home, touches: list[Touch]) -> Iterator[Occupant]:
    """The buffer in each launch that touches it: what it holds may end with the launch."""
    by_replay: dict[int, list[Touch]] = {}
    for touch in touches:
        by_replay.setdefault(trace.actions[touch.action].replay, []).append(touch)
    for each in by_replay.values():
        actions = tuple(dict.fromkeys(touch.action for touch in each))
        tails: dict[int, int] = {}
        for number in actions:
            action = trace.actions[number]
            tails[action.chain] = max(tails.get(action.chain, -1), action.position)
        yield Occupant(home, each, actions, tails)


def settle(sweep: Sweep, held: Held, new: Occupant) -> Held:
    """Put a buffer on its bytes, after checking it against all those that it may meet there."""
    result: Held = []
    checked: set[Occupant] = set()
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


def clear(sweep: Sweep, old: Occupant, new: Occupant, checked: set[Occupant]) -> bool:
    """Whether all accesses of the old buffer are before all of the new; if not, compare them."""
    if is_wholly_before(sweep.trace, old, new):
        if old not in new.behind:
            new.behind.append(old)
        return True
    if old not in checked:
        checked.add(old)
        if old.home != new.home:  # the accesses of one buffer are compared already
            compare(sweep, old, new)
        # What gave way to the old buffer may still meet this one.
        for each in old.behind:
            if each.start < new.stop and new.start < each.stop:
                clear(sweep, each, new, checked)
    return False


def is_done_before(trace: Trace, old: Occupant, new: Occupant) -> bool:
    """Whether the program, in its order, is done with the old buffer before it uses the new."""
    last = max(trace.actions[number].place for number in old.actions)
    return last < trace.actions[new.actions[0]].place


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
    ours, theirs = old.home, new.home
    if ours.base != theirs.base and not is_done_before(sweep.trace, old, new):
        text = (
            f"buffers '{ours.name}' and '{theirs.name}' share memory, and both are in use at once"
        )
        span = sweep.trace.actions[new.touches[0].action].span
        sweep.lost[ours.name, theirs.name] = Diagnostic("bad-schedule", text, span)
    for one in old.touches:
        for two in new.touches:
            if one.action == two.action or not (
                one.access.mode.is_write or two.access.mode.is_write
            ):
                continue
            low, high = shared_bytes(ours, one, theirs, two)
            if low >= high:
                continue
            actions = sweep.trace.actions
            if actions[one.action].place < actions[two.action].place:
                sweep.require(one, two, low - new.start, high - new.start)
            else:
                sweep.require(two, one, low - old.start, high - old.start)


def shared_bytes(ours: Home, one: Touch, theirs: Home, two: Touch) -> tuple[int, int]:
    """The physical bytes that two accesses share: all of the buffers' if the count moves them."""
    if ours.counted_nbytes or theirs.counted_nbytes:
        return max(ours.start, theirs.start), min(ours.stop, theirs.stop)
    return (
        max(ours.start + one.start, theirs.start + two.start),
        min(ours.start + one.stop, theirs.start + two.stop),
    )
