"""What divided schedules look like."""

from __future__ import annotations

from dataclasses import replace

import pytest
from division import FREE, scheduled
from small_programs import small_program

from graphc.draw.dump import dump
from graphc.draw.swimlanes import swimlanes
from graphc.draw.timeline import timeline
from graphc.ir import Await, Division, LaunchContract, Schedule, Settings, Signal, Signalling

BUFFERS = {"t": "g0", "s": "g0 state", "u": "g1 state"}
OPS = [
    {"name": "a", "at": "g0", "updates": ["s"], "writes": ["t"]},
    {"name": "b", "at": "g1", "reads": ["t"], "updates": ["u"]},
]


@pytest.fixture
def schedule() -> Schedule:
    settings = Settings(units=Division.DEVICE, launch=FREE)
    return scheduled([small_program(BUFFERS, OPS)], settings)[0]


def test_a_dump_names_units_signals_and_what_awaits_them(schedule: Schedule) -> None:
    text = dump(schedule)
    assert "emit capture, launched free, sync flags" in text
    assert "units: 2\n  g0  g0\n  g1  g1\n" in text
    assert text.count(" origin\n") == 2
    assert "run signal/a (signal step/a to g1)" in text
    assert "run await/b (await step/a of g0)" in text
    assert "(await step/b.previous of g1 in the launch before)" in text


def test_schedules_that_differ_in_their_division_do_not_print_alike(schedule: Schedule) -> None:
    others = [
        replace(schedule, launch=LaunchContract.JOINED),
        replace(schedule, sync=Signalling.MEMOPS),
        replace(schedule, units=schedule.units[:1]),
        replace(schedule, program=replace(schedule.program, entry="prepare")),
    ]
    assert len({dump(each) for each in (schedule, *others)}) == 5


def test_an_await_starts_when_its_signals_are_sent(schedule: Schedule) -> None:
    times = timeline(schedule, durations={"a": 100.0, "signal/a": 5.0})
    boxes = {box.op: box for box in times.boxes}
    assert boxes["await/b"].start_us == boxes["signal/a"].stop_us > 100.0
    arrows = {arrow.after.op: arrow for arrow in times.arrows}
    assert arrows["await/b"].before.op == "signal/a"
    assert arrows["await/b"].is_binding
    assert "await/a.previous" not in arrows  # nobody signals it in this launch


def test_a_drawing_has_the_origin_of_each_unit_and_an_arrow_for_each_signal(
    schedule: Schedule,
) -> None:
    drawing = swimlanes(schedule)
    assert drawing.count("(origin)") == 2
    assert "await/b waits for signal/a" in drawing
    assert "2 units, 2 signals" in drawing
    kinds = {op.work.kind for op in schedule.program if isinstance(op.work, Signal | Await)}
    assert all(f">{kind}</text>" in drawing for kind in (*kinds, "begin"))
