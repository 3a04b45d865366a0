"""The trace file against the format that Perfetto reads: Chrome's trace events, in JSON."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from small_plan import small_plan

from graphc.backends.recording import Recording, Replay, Span, Stray, Way
from graphc.plan import Plan
from graphc.timeline import Source, Timeline
from graphc.tracing.traced import Trace, trace_of

STRAY = Stray("kernel other", "its node belongs to no op", 1, 3.0, 4.0)
FIELDS = {  # by phase: what each event must have, and of what type
    "X": {"name": str, "cat": str, "ts": float, "dur": float, "pid": int, "tid": int, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "s": {"name": str, "cat": str, "id": int, "ts": float, "pid": int, "tid": int},
    "f": {"name": str, "cat": str, "id": int, "ts": float, "pid": int, "tid": int, "bp": str},
}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def traced(plan: Plan, *, predicted: bool = False) -> Trace:
    """One op after the other, 10 us each; the prediction has them half as long."""
    variant = plan.variants[0]
    names = [op.name for op in variant.schedule.program]
    spans = {name: Span(10.0 * at, 10.0 * at + 10) for at, name in enumerate(names)}
    recording = Recording(Way.CUPTI, (Replay(spans, (STRAY,)),), {"primary": "one clock"})
    made = trace_of(plan, variant, recording)
    if not predicted:
        return made
    timeline = Timeline(Source.SIMULATED, made.timeline.slices, made.timeline.stop_us)
    return trace_of(plan, variant, recording, timeline)


@cache
def document(*, predicted: bool = False) -> dict[str, Any]:
    found = json.loads(traced(small_plan(), predicted=predicted).perfetto())
    assert isinstance(found, dict)
    return found


def events(kind: str, **options: Any) -> list[dict[str, Any]]:
    return [each for each in document(**options)["traceEvents"] if each["ph"] == kind]


@pytest.mark.parametrize("predicted", [False, True])
def test_every_event_has_what_the_format_asks(predicted: bool) -> None:
    for each in document(predicted=predicted)["traceEvents"]:
        wanted = FIELDS[each["ph"]]
        assert {*wanted} | {"ph"} == {*each}
        for name, kind in wanted.items():
            assert isinstance(each[name], kind) or (kind is float and type(each[name]) is int), each
        if each["ph"] == "M":
            assert each["name"] in METADATA
        if each["ph"] == "X":
            assert each["dur"] >= 0


def named(what: str, **options: Any) -> list[dict[str, Any]]:
    return [each for each in events("M", **options) if each["name"] == what]


def test_processes_are_devices_and_threads_are_streams() -> None:
    names = {each["pid"]: each["args"]["name"] for each in named("process_name")}
    assert [*names.values()] == ["primary", "peer", "records that belong to no op"]
    threads = {(names[each["pid"]], each["args"]["name"]) for each in named("thread_name")}
    assert threads == {("primary", "primary.0"), ("primary", "primary.down"), ("peer", "peer.0")}
    known = {(each["pid"], each["tid"]) for each in named("thread_name")}
    placed = {(each["pid"], each["tid"]) for each in events("X") if each["cat"] != "stray"}
    assert placed <= known


def test_slices_of_a_thread_do_not_overlap_and_tell_what_they_are() -> None:
    ops = {op.name: op for op in small_plan().variants[0].schedule.program}
    slices = [each for each in events("X") if each["cat"] != "stray"]
    assert {each["name"] for each in slices} == {*ops}
    by_thread: dict[tuple[int, int], list[Any]] = {}
    for each in slices:
        by_thread.setdefault((each["pid"], each["tid"]), []).append(each)
    for own in by_thread.values():
        own.sort(key=lambda each: each["ts"])
        for one, two in pairwise(own):
            assert one["ts"] + one["dur"] <= two["ts"]
    add = next(each for each in slices if each["name"] == "add/piece.1")
    assert add["args"]["piece"] == "1 of 3"
    assert add["args"]["step"] == "add"
    assert add["args"]["dependencies"] == ["back/piece.1"]
    assert any(each.startswith("b=acc[") for each in add["args"]["regions"])


def test_arrows_lead_from_within_what_was_waited_for_to_the_start_of_the_waiter() -> None:
    slices = {each["name"]: each for each in events("X")}
    starts = {each["id"]: each for each in events("s")}
    stops = {each["id"]: each for each in events("f")}
    assert {*starts} == {*stops}
    assert len(starts) == len(events("s"))
    waits = sum(len(each["args"].get("dependencies", ())) for each in slices.values())
    assert len(starts) == waits > 0
    for number, stop in stops.items():
        start = starts[number]
        waiter = [
            each for each in slices.values()
            if (each["pid"], each["tid"], each["ts"]) == (stop["pid"], stop["tid"], stop["ts"])
        ]  # fmt: skip
        assert len(waiter) == 1
        before = [
            each for each in slices.values()
            if (each["pid"], each["tid"]) == (start["pid"], start["tid"])
            and each["ts"] <= start["ts"] < each["ts"] + each["dur"]
        ]  # fmt: skip
        assert len(before) == 1
        assert before[0]["name"] in waiter[0]["args"]["dependencies"]
        assert stop["bp"] == "e"


def test_records_that_belong_to_no_op_are_there_and_say_why() -> None:
    (stray,) = [each for each in events("X") if each["cat"] == "stray"]
    assert stray["name"] == "kernel other"
    assert stray["args"] == {"why": "its node belongs to no op", "gpu": 1}


def test_a_prediction_has_processes_of_its_own() -> None:
    found = named("process_name", predicted=True)
    names = {each["pid"]: each["args"]["name"] for each in found}
    assert [*names.values()] == [
        "primary", "peer", "primary (simulated)", "peer (simulated)",
        "records that belong to no op",
    ]  # fmt: skip
    numbers = [each["id"] for each in events("s", predicted=True)]
    assert len(numbers) == len(set(numbers))


def test_the_file_says_how_it_was_made() -> None:
    told = document()["otherData"]
    assert told["by"] == "cupti"
    assert told["clocks"] == {"primary": "one clock"}
    assert told["replays"] == 1
