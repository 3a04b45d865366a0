"""Phases of a timeline that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphc.timeline import Slice, Source, Timeline
from graphc.tracing.phases import LATENCY, OTHERS, PhaseTime, Waits, medians, phase_times

# time      0    10   20   30   40   50   60   70   80
# primary.0 |mix      |local    |              |combine
# primary.1                               |up       |        (results, on the primary)
# peer.0              |experts  |    |sums |
#
# sums is late by 5 us though nothing held it up; up waits for sums, combine for up.
SLICES = (
    ("mix", "primary.0", 0, 20, 0, ()),
    ("experts", "peer.0", 22, 40, 0, ("mix",)),
    ("local", "primary.0", 20, 40, 20, ()),
    ("sums", "peer.0", 45, 55, 40, ()),
    ("up", "primary.1", 56, 70, 0, ("sums",)),
    ("combine", "primary.0", 72, 80, 40, ("up",)),
)
PHASES = {
    "router": ("mix",),
    "local": ("local",),
    "peer": ("experts", "sums"),
    "results": ("up",),
    "combine": ("combine",),
}


def timeline(*changes: Slice) -> Timeline:
    made = {
        name: Slice(
            name, name, 0, stream, stream.split(".")[0], "sm", start, stop, ready, waited_for
        )
        for name, stream, start, stop, ready, waited_for in SLICES
    }
    made |= {each.op: each for each in changes}
    return Timeline(Source.MEASURED, tuple(made.values()), 80.0)


def by_name(**options: Any) -> dict[str, PhaseTime]:
    return {each.phase: each for each in phase_times(timeline(), options.get("phases", PHASES))}


def test_combine_and_the_wait_for_the_peer_are_two_numbers() -> None:
    combine = by_name()["combine"]
    assert combine.busy_us == 8
    assert combine.clock_us == 8
    assert combine.waited_us == 32
    # From 72 back to 40: 2 of latency, up 14, 1 of latency, sums 10, 5 of latency.
    assert combine.waited_for == {"results": 14, "peer": 10, LATENCY: 8}
    assert combine.waited_on == {"primary": 14, "peer": 10, LATENCY: 8}


def test_every_wait_is_told_in_full() -> None:
    for each in by_name().values():
        assert sum(each.waited_for.values()) == pytest.approx(each.waited_us)
        assert sum(each.waited_on.values()) == pytest.approx(each.waited_us)
    assert by_name()["peer"].waited_for == {"router": 20, LATENCY: 7}  # 22 and 5 in all
    assert by_name()["router"].waited_us == 0


def test_a_wait_reaches_back_over_what_came_before_on_the_other_stream() -> None:
    up = by_name()["results"]
    # From 56 to 0: 1, sums 10, 5, experts 18, 2, mix 20.
    assert up.waited_us == 56
    assert up.waited_for == {"peer": 28, "router": 20, LATENCY: 8}


def test_ops_of_a_phase_may_overlap() -> None:
    both = by_name(phases={"both": ("local", "experts")})["both"]
    assert both.ops == 2
    assert both.busy_us == 38
    assert both.clock_us == 20


def test_what_is_in_no_phase_is_told_together() -> None:
    found = by_name(phases={"combine": ("combine",)})
    assert [*found] == ["combine", OTHERS]
    assert found[OTHERS].ops == 5
    assert found["combine"].waited_for == {OTHERS: 24, LATENCY: 8}
    assert OTHERS not in by_name()


def test_a_phase_without_ops_stays_in_the_table() -> None:
    found = by_name(phases={**PHASES, "empty": ("lost",)})
    assert found["empty"].ops == 0
    assert found["empty"].busy_us == 0


def test_an_op_that_ended_later_than_the_waiter_began_counts_up_to_there() -> None:
    """Clocks of two GPUs are only known within limits: nothing may count twice."""
    late = Slice("up", "up", 0, "primary.1", "primary", "sm", 56, 75, 0, ("sums",))
    waits = Waits(timeline(late))
    combine = waits.slices["combine"]
    parts = list(waits.blames(combine))
    assert sum(each.us for each in parts) == combine.waited_us
    assert [(each.op.op if each.op else None, each.us) for each in parts] == [
        ("up", 16), (None, 1), ("sums", 10), (None, 5),
    ]  # fmt: skip


def test_joins_belong_to_no_phase() -> None:
    join = Slice("join/a", "join/a", 0, "primary.0", "primary", "none", 40, 40, 40)
    assert OTHERS not in {each.phase for each in phase_times(timeline(join), PHASES)}


def test_medians_are_taken_number_by_number() -> None:
    first = PhaseTime("a", 2, 10, 9, 4, {"b": 4}, {"peer": 4})
    second = replace(first, busy_us=12, waited_us=6, waited_for={"b": 2, "c": 4})
    third = replace(first, busy_us=30, waited_us=5, waited_for={"c": 5})
    (found,) = medians([[first], [second], [third]])
    assert (found.busy_us, found.clock_us, found.waited_us) == (12, 9, 5)
    assert found.waited_for == {"c": 4, "b": 2}
