"""Every access of a buffer against the accesses that are nearest below it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from graphc.ir import Access
from graphc.regions import Region
from graphc.text.diagnostics import Diagnostic
from graphc.verify.trace import Action, Trace


@dataclass(frozen=True, slots=True)
class Race:
    trace: Trace
    one: Action
    two: Action
    one_access: Access | None  # None: the beginning or end of the launch itself
    two_access: Access | None
    touched: str  # the bytes


@dataclass(slots=True, eq=False)
class Touch:
    """An access of an action, and the key under which it commutes (None: with nothing)."""

    action: int
    access: Access
    key: object
    start: int  # the bytes of its buffer, at the nominal extent that all launches share
    stop: int


@dataclass(slots=True)
class Sweep:
    """What was compared, the races found, one for each pair of steps, and buffers overwritten."""

    trace: Trace
    races: dict[tuple[str, ...], Race] = field(default_factory=dict)
    lost: dict[tuple[str, str], Diagnostic] = field(default_factory=dict)
    pairs: int = 0
    nbytes: int = 0

    def require(self, one: Touch, two: Touch, start: int, stop: int) -> None:
        """The first access must be before the second; they share these bytes of the second."""
        self.pairs += 1
        if self.trace.is_before(one.action, two.action):
            return
        touched = str(Region(two.access.region.buffer, start, stop))
        self.report(one.action, two.action, one.access, two.access, touched)

    def report(
        self, one: int, two: int, access: Access | None, other: Access | None, touched: str
    ) -> None:
        before, after = self.trace.actions[one], self.trace.actions[two]
        steps = (
            before.schedule.entry,
            before.op.step if before.op else before.name,
            after.schedule.entry,
            after.op.step if after.op else after.name,
        )
        self.races.setdefault(steps, Race(self.trace, before, after, access, other, touched))


@dataclass(slots=True)
class Front:
    """Bytes touched alike: the latest accesses, which commute, and those that they came after."""

    start: int
    stop: int
    latest: list[Touch]
    earlier: list[Touch]


def sweep_buffer(sweep: Sweep, touches: Sequence[Touch]) -> None:
    """Check each access of one buffer against the nearest conflicting ones below it."""
    fronts: list[Front] = []  # disjoint, ascending
    for touch in touches:
        start, stop = touch.start, touch.stop
        first = bisect_left(fronts, start + 1, key=attrgetter("stop"))
        if first < len(fronts) and (fronts[first].start, fronts[first].stop) == (start, stop):
            front = meet(sweep, fronts[first], touch, start, stop)  # by far the most frequent
            fronts[first] = whole(touch) if touch.key is None else front
            continue
        last = first
        fresh: list[Front] = []
        reached = start
        while last < len(fronts) and fronts[last].start < stop:
            front = fronts[last]
            if front.start < start:
                fresh.append(Front(front.start, start, list(front.latest), front.earlier))
            if reached < front.start:
                fresh.append(Front(reached, front.start, [touch], []))
            if stop < front.stop:
                fresh.append(Front(stop, front.stop, list(front.latest), front.earlier))
            low, high = max(front.start, start), min(front.stop, stop)
            fresh.append(meet(sweep, front, touch, low, high))
            reached = high
            last += 1
        if reached < stop:
            fresh.append(Front(reached, stop, [touch], []))
        if touch.key is None:
            fresh = [*(each for each in fresh if not covers(touch, each)), whole(touch)]
        fronts[first:last] = sorted(fresh, key=attrgetter("start"))
    sweep.nbytes += sum(front.stop - front.start for front in fronts)


def meet(sweep: Sweep, front: Front, touch: Touch, start: int, stop: int) -> Front:
    """The front of these bytes after the access, which is checked against those it must follow."""
    if touch.key is not None and front.latest[0].key == touch.key:
        front.latest.append(touch)
        below, latest, earlier = front.earlier, front.latest, front.earlier
    else:
        below, latest, earlier = front.latest, [touch], front.latest
    for other in below:
        if other.action != touch.action:
            sweep.require(other, touch, start, stop)
    return Front(start, stop, latest, earlier)


def covers(touch: Touch, front: Front) -> bool:
    return touch.start <= front.start and front.stop <= touch.stop


def whole(touch: Touch) -> Front:
    """One front for all bytes that a write covers: nothing joins it, so all it hides can go."""
    return Front(touch.start, touch.stop, [touch], [])
