"""When ops run, on paper."""

from __future__ import annotations

import pytest
from peer_example import PRIMARY, peer_schedule

from graphc.draw.timeline import timeline
from graphc.ir import Run


@pytest.mark.parametrize("pieces", [1, 3, 16])
def test_streams_run_in_order_and_nobody_starts_before_what_he_waits_for(pieces: int) -> None:
    schedule = peer_schedule(pieces, layers=2)
    times = timeline(schedule)
    by_op = {box.op: box for box in times.boxes}
    free: dict[str, float] = {}
    for box in times.boxes:
        assert box.start_us >= free.get(box.stream, 0.0)
        free[box.stream] = box.stop_us
    assert all(by_op[after].start_us >= by_op[before].stop_us for before, after in schedule.edges)
    assert times.stop_us == max(box.stop_us for box in times.boxes)


def test_an_op_starts_as_soon_as_it_may() -> None:
    schedule = peer_schedule(1)
    times = timeline(schedule, durations={op.name: 10.0 for op in schedule.program})
    start = {box.op: box.start_us for box in times.boxes}
    assert start["layer.0/mix"] == 0.0
    assert start["layer.0/activations/down"] == 10.0
    assert start["layer.0/route"] == 10.0
    assert start["layer.0/routing"] == 20.0


def test_a_duration_may_be_given_for_a_whole_step() -> None:
    times = timeline(peer_schedule(3), durations={"layer.0/mix": 7.0})
    assert [box.stop_us for box in times.boxes[:3]] == [7.0, 14.0, 21.0]


def test_a_wait_binds_if_the_stream_was_free_before_it_was_met() -> None:
    schedule = peer_schedule(1)
    fast = {op.name: 1.0 for op in schedule.program} | {"layer.0/down": 1000.0}
    arrows = {arrow.before.op: arrow for arrow in timeline(schedule, durations=fast).arrows}
    assert not arrows["layer.0/results/up"].is_binding
    slow = fast | {"layer.0/down": 1.0, "layer.0/p_up": 1000.0}
    arrows = {arrow.before.op: arrow for arrow in timeline(schedule, durations=slow).arrows}
    assert arrows["layer.0/results/up"].is_binding


def test_the_wait_of_combine_for_the_peer_is_counted() -> None:
    schedule = peer_schedule(1)
    durations = {op.name: 1.0 for op in schedule.program} | {"layer.0/p_up": 100.0}
    times = timeline(schedule, durations=durations)
    combine = next(box for box in times.boxes if box.op == "layer.0/combine")
    down = next(box for box in times.boxes if box.op == "layer.0/down")
    assert times.waited_us(frozenset({"layer.0/combine"})) == combine.start_us - down.stop_us > 90


def test_measured_times_are_taken_as_they_are() -> None:
    schedule = peer_schedule(1)
    runs = [each for each in schedule.instructions if isinstance(each, Run)]
    measured = {each.op: (100.0 + at, 101.0 + at) for at, each in enumerate(runs)}
    times = timeline(schedule, measured=measured)
    assert times.boxes[0].start_us == 0.0
    assert times.boxes[0].stream == PRIMARY
    assert times.stop_us == len(runs)
