"""A trace as Chrome's JSON, which Perfetto opens: processes are devices, threads are streams.

What was measured and what was predicted are processes of their own, so that both stand in one view.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from graphc.backends.recording import Stray
from graphc.draw.dump import access_text
from graphc.ir import Op, Schedule
from graphc.timeline import Slice, Source, Timeline

BEFORE_END_US = 0.001  # a flow's arrow belongs to the slice that its time lies in


def perfetto_json(
    schedule: Schedule,
    timelines: Iterable[Timeline],
    *,
    phases: Mapping[str, tuple[str, ...]],
    strays: Iterable[Stray] = (),
    facts: Mapping[str, Any] | None = None,
) -> str:
    """The trace file: one JSON object, with ``facts`` as what it says of itself."""
    phase_of = {step: phase for phase, steps in phases.items() for step in steps}
    events: list[dict[str, Any]] = []
    first = 1
    for timeline in timelines:
        processes = Processes(schedule, timeline, first)
        events += processes.names()
        events += processes.slices(phase_of)
        events += processes.flows()
        first += len(schedule.program.devices) + 1
    events += stray_events(strays, first)
    document = {"displayTimeUnit": "ns", "otherData": dict(facts or {}), "traceEvents": events}
    return json.dumps(document, separators=(",", ":")) + "\n"


class Processes:
    """The events of one timeline, whose devices are processes from ``first`` on."""

    def __init__(self, schedule: Schedule, timeline: Timeline, first: int) -> None:
        self.schedule, self.timeline, self.first = schedule, timeline, first
        devices = dict.fromkeys(
            (*schedule.program.devices, *(each.device for each in schedule.streams))
        )
        self.pids = {device: first + at for at, device in enumerate(devices)}
        self.places = {
            stream.name: (self.pids[stream.device], tid)
            for tid, stream in enumerate(schedule.streams, 1)
        }
        self.ops = {op.name: op for op in schedule.program}

    def names(self) -> Iterator[dict[str, Any]]:
        is_measured = self.timeline.source is Source.MEASURED
        for device, pid in self.pids.items():
            title = device if is_measured else f"{device} ({self.timeline.source})"
            yield named("process_name", pid, 0, {"name": title})
            yield named("process_sort_index", pid, 0, {"sort_index": pid})
        for at, stream in enumerate(self.schedule.streams):
            pid, tid = self.places[stream.name]
            yield named("thread_name", pid, tid, {"name": stream.name})
            yield named("thread_sort_index", pid, tid, {"sort_index": at})

    def slices(self, phase_of: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        for each in self.timeline.slices:
            pid, tid = self.places[each.stream]
            yield {
                "name": each.op,
                "cat": phase_of.get(each.step, "no phase"),
                "ph": "X",
                "ts": each.start_us,
                "dur": each.duration_us,
                "pid": pid,
                "tid": tid,
                "args": arguments(each, self.ops[each.op], phase_of),
            }

    def flows(self) -> Iterator[dict[str, Any]]:
        """An arrow for each wait: from the end of what it was for to the start of the waiter."""
        slices = {each.op: each for each in self.timeline.slices}
        number = 0
        for each in self.timeline.slices:
            for name in each.waited_for:
                if name not in slices:
                    continue
                number += 1
                before = slices[name]
                flow = {"name": "wait", "cat": "wait", "id": self.first * 1_000_000 + number}
                start_us = max(before.start_us, before.stop_us - BEFORE_END_US)
                yield flow | self.end("s", before, start_us)
                yield flow | self.end("f", each, each.start_us) | {"bp": "e"}

    def end(self, phase: str, each: Slice, at_us: float) -> dict[str, Any]:
        pid, tid = self.places[each.stream]
        return {"ph": phase, "ts": at_us, "pid": pid, "tid": tid}


def arguments(each: Slice, op: Op, phase_of: Mapping[str, str]) -> dict[str, Any]:
    return {
        "step": each.step,
        "piece": f"{op.piece.index} of {op.piece.of}",
        "phase": phase_of.get(each.step),
        "engine": each.engine,
        "regions": [access_text(access) for access in op.accesses],
        "dependencies": list(each.waited_for),
        "waited_us": each.waited_us,
    }


def stray_events(strays: Iterable[Stray], pid: int) -> Iterator[dict[str, Any]]:
    """Records that belong to no op, in a process that says so."""
    found = list(strays)
    if found:
        yield named("process_name", pid, 0, {"name": "records that belong to no op"})
    for each in found:
        yield {
            "name": each.what,
            "cat": "stray",
            "ph": "X",
            "ts": each.start_us,
            "dur": each.stop_us - each.start_us,
            "pid": pid,
            "tid": each.device + 1,
            "args": {"why": each.why, "gpu": each.device},
        }


def named(what: str, pid: int, tid: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": dict(arguments)}
