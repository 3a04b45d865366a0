"""A timeline by phases: what its ops took, and, apart from that, what their streams waited.

A wait is charged to the phase whose op waited, and told by what was going on meanwhile: back
along the ops that it waited for, each part of the wait belongs to the op that ran then, and so to
that op's phase and device. What is left, between the end of one op and the start of the next, is
the latency of launches and events, or an engine that was busy with something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from graphc.simulation.summary import covered
from graphc.timeline import Slice, Timeline

OTHERS = "(no phase)"
LATENCY = "(latency)"  # nothing that it waited for ran


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase of one replay, or medians over several."""

    phase: str
    ops: int
    busy_us: float  # the times of its ops together
    clock_us: float  # the time in which at least one of them ran
    waited_us: float  # how long streams stood idle in front of its ops
    waited_for: Mapping[str, float]  # phase, or LATENCY -> its part of that
    waited_on: Mapping[str, float]  # device, or LATENCY -> its part of that


@dataclass(frozen=True, slots=True)
class Blame:
    """A part of a wait: ``op`` ran meanwhile; None: nothing that was waited for."""

    op: Slice | None
    us: float


def phase_times(timeline: Timeline, phases: Mapping[str, Sequence[str]]) -> tuple[PhaseTime, ...]:
    """The phases in their order, then what is in none."""
    phase_of = {step: phase for phase, steps in phases.items() for step in steps}
    by_phase: dict[str, list[Slice]] = {phase: [] for phase in (*phases, OTHERS)}
    for each in timeline.slices:
        if each.engine != "none":
            by_phase[phase_of.get(each.step, OTHERS)].append(each)
    waits = Waits(timeline)
    return tuple(
        phase_time(phase, own, waits, phase_of)
        for phase, own in by_phase.items()
        if own or phase != OTHERS
    )


def phase_time(
    phase: str, slices: Sequence[Slice], waits: Waits, phase_of: Mapping[str, str]
) -> PhaseTime:
    waited_for: dict[str, float] = {}
    waited_on: dict[str, float] = {}
    for part in (part for each in slices for part in waits.blames(each)):
        cause = phase_of.get(part.op.step, OTHERS) if part.op else LATENCY
        place = part.op.device if part.op else LATENCY
        waited_for[cause] = waited_for.get(cause, 0.0) + part.us
        waited_on[place] = waited_on.get(place, 0.0) + part.us
    return PhaseTime(
        phase,
        len(slices),
        sum(each.duration_us for each in slices),
        covered([(each.start_us, each.stop_us) for each in slices]),
        sum(each.waited_us for each in slices),
        most_first(waited_for),
        most_first(waited_on),
    )


def most_first(found: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


class Waits:
    """Goes back from an op along what it waited for."""

    def __init__(self, timeline: Timeline) -> None:
        self.slices = {each.op: each for each in timeline.slices}
        self.previous: dict[str, Slice] = {}
        last: dict[str, Slice] = {}
        for each in timeline.slices:
            if each.stream in last:
                self.previous[each.op] = last[each.stream]
            last[each.stream] = each

    def blames(self, waiting: Slice) -> Iterator[Blame]:
        """The parts of the wait in front of an op; they add up to it."""
        cursor_us, least_us = waiting.start_us, waiting.ready_us
        op: Slice | None = self.latest(waiting.waited_for)
        while cursor_us > least_us:
            stop_us = min(cursor_us, max(least_us, op.stop_us)) if op else least_us
            if cursor_us > stop_us:
                yield Blame(None, cursor_us - stop_us)
            if op is None or stop_us <= least_us:
                return
            start_us = min(stop_us, max(least_us, op.start_us))
            if stop_us > start_us:
                yield Blame(op, stop_us - start_us)
            cursor_us, op = start_us, self.before(op)

    def before(self, op: Slice) -> Slice | None:
        """What came last of all that an op had to wait for, the op before on its stream too."""
        found = self.latest(op.waited_for)
        previous = self.previous.get(op.op)
        if found is None or (previous is not None and previous.stop_us > found.stop_us):
            return previous
        return found

    def latest(self, names: Iterable[str]) -> Slice | None:
        known = [self.slices[name] for name in names if name in self.slices]
        return max(known, key=lambda each: each.stop_us, default=None)


def medians(replays: Sequence[Sequence[PhaseTime]]) -> tuple[PhaseTime, ...]:
    """Each number of each phase as its median over the replays."""
    return tuple(median_of(own) for own in zip(*replays, strict=True))


def median_of(own: Sequence[PhaseTime]) -> PhaseTime:
    first = own[0]
    return PhaseTime(
        first.phase,
        first.ops,
        median(each.busy_us for each in own),
        median(each.clock_us for each in own),
        median(each.waited_us for each in own),
        medians_by_name([each.waited_for for each in own]),
        medians_by_name([each.waited_on for each in own]),
    )


def medians_by_name(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in found for name in each)
    return most_first({name: median(each.get(name, 0.0) for each in found) for name in names})
