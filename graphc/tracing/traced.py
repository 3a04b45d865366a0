"""A trace: the replays of a graph, the one that stands for them, and what was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from graphc.backends.recording import Recording, Replay
from graphc.plan import Plan, Variant, checked_path
from graphc.text.write import write_whole
from graphc.timeline import Timeline
from graphc.tracing.perfetto import perfetto_json
from graphc.tracing.phases import PhaseTime, medians, phase_times
from graphc.tracing.slices import timeline_of


@dataclass(frozen=True, slots=True)
class OpTrace:
    """One op over all replays, beside what was predicted of it."""

    op: str
    step: str
    phase: str | None
    device: str
    stream: str
    engine: str
    start_us: float  # in the replay that stands for all
    us: float  # medians over the replays
    waited_us: float
    predicted_us: float | None = None

    @property
    def error(self) -> float | None:
        """By how much the prediction is off, of what was measured; None where nothing was."""
        if self.predicted_us is None or self.us <= 0:
            return None
        return self.predicted_us / self.us - 1


@dataclass(frozen=True, slots=True)
class Trace:
    """What ``graphc.trace`` gives."""

    plan: Plan
    variant: Variant
    recording: Recording
    timelines: tuple[Timeline, ...]  # of each replay
    predicted: Timeline | None = None

    @property
    def timeline(self) -> Timeline:
        """The replay of middling length: one that happened, not a mean of several."""
        ordered = sorted(self.timelines, key=lambda each: each.stop_us)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def replay(self) -> Replay:
        return self.recording.replays[self.timelines.index(self.timeline)]

    @property
    def total_us(self) -> float:
        """The median time of a replay."""
        return median(each.stop_us for each in self.timelines)

    @property
    def phases(self) -> tuple[PhaseTime, ...]:
        """By phase, medians over the replays."""
        return medians([phase_times(each, self.plan.phases) for each in self.timelines])

    @property
    def ops(self) -> tuple[OpTrace, ...]:
        """Op by op in order of issue, beside what was predicted."""
        return tuple(self._ops())

    def _ops(self) -> Iterator[OpTrace]:
        phase_of = {step: phase for phase, steps in self.plan.phases.items() for step in steps}
        took: dict[str, list[float]] = {}
        waited: dict[str, list[float]] = {}
        for each in (each for timeline in self.timelines for each in timeline.slices):
            took.setdefault(each.op, []).append(each.duration_us)
            waited.setdefault(each.op, []).append(each.waited_us)
        slices = self.predicted.slices if self.predicted else ()
        predicted = {each.op: each.duration_us for each in slices}
        for each in self.timeline.slices:
            yield OpTrace(
                each.op,
                each.step,
                phase_of.get(each.step),
                each.device,
                each.stream,
                each.engine,
                each.start_us,
                median(took[each.op]),
                median(waited[each.op]),
                predicted.get(each.op),
            )

    @property
    def missing(self) -> tuple[str, ...]:
        """Ops that should have been seen, and were in no replay."""
        return self.recording.missing

    def save(self, path: str | Path) -> None:
        """Write the trace file that Perfetto opens, whole or not at all."""
        write_whole(checked_path(path, "a trace"), self.perfetto().encode())

    def perfetto(self) -> str:
        timelines = (self.timeline, *([self.predicted] if self.predicted else []))
        return perfetto_json(
            self.variant.schedule,
            timelines,
            phases=self.plan.phases,
            strays=self.replay.strays,
            facts=self.facts(),
        )

    def facts(self) -> Mapping[str, Any]:
        """What the trace says of itself."""
        recording = self.recording
        return {
            "name": self.plan.name,
            "routes": dict(self.variant.routes),
            "params": dict(self.plan.params),
            "by": recording.way.value,
            "replays": len(self.timelines),
            "clocks": dict(recording.clocks),
            "gpus": dict(recording.names),
            "notes": list(recording.notes),
            "missing": list(self.missing),
        }


def trace_of(
    plan: Plan, variant: Variant, recording: Recording, predicted: Timeline | None = None
) -> Trace:
    timelines = tuple(timeline_of(variant.schedule, recording, each) for each in recording.replays)
    return Trace(plan, variant, recording, timelines, predicted)
