"""Timelines of a few ops, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import copy, narrow, ran, round_machine, streaming, task, wide

from graphc.profiles import ProfileSpec
from graphc.simulation.demands import Kind
from graphc.simulation.engine import Ran, Task


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> ProfileSpec:
    return round_machine(tmp_path_factory.mktemp("machine"))


def times(found: list[Ran]) -> list[tuple[float, float]]:
    return [(round(each.start_us, 3), round(each.stop_us, 3)) for each in found]


def test_a_stream_runs_one_op_after_the_other(machine: ProfileSpec) -> None:
    found = ran(machine, task(wide(10)), task(wide(5), (0,)))
    assert times(found) == [(0, 10), (11, 16)]


def test_steps_to_other_streams_and_gpus_take_longer(machine: ProfileSpec) -> None:
    near = task(narrow(5), (0,), stream=1)
    far = replace(task(narrow(5), (0,), stream=2), place=1)
    far = replace(far, demand=replace(far.demand, gpu=1))
    assert times(ran(machine, task(wide(10)), near, far)) == [(0, 10), (12, 17), (14, 19)]


def test_a_copy_engine_does_one_copy_after_the_other(machine: ProfileSpec) -> None:
    found = ran(machine, task(copy("copy to host", 8)), task(copy("copy to host", 8), stream=1))
    assert times(found) == [(0, 10), (10, 20)]
    assert found[1].cause == 0


def test_both_ways_of_one_gpu_share_its_link(machine: ProfileSpec) -> None:
    """16 GB/s for both: each gets 8 of the 10 that it could use alone."""
    both = task(copy("copy to host", 8)), task(copy("copy from host", 8), stream=1)
    assert times(ran(machine, *both)) == [(0, 12), (0, 12)]


def test_all_gpus_at_once_share_the_host(machine: ProfileSpec) -> None:
    """20 GB/s for four: half of what each could use alone."""
    four = [
        task(copy(way, 8, gpu), stream=gpu * 2 + index)
        for gpu in (0, 1)
        for index, way in enumerate(("copy to host", "copy from host"))
    ]
    assert times(ran(machine, *four)) == [(0, 18)] * 4


def test_what_ends_leaves_its_share_to_the_others(machine: ProfileSpec) -> None:
    """Both at 8 GB/s until the short one has moved its 16 kB, then the other alone at 10."""
    short, long = copy("copy to host", 1.6), copy("copy from host", 9.6)
    short, long = replace(short, fixed_us=0.0), replace(long, fixed_us=0.0)
    found = ran(machine, task(short), task(long, stream=1))
    assert times(found) == [(0, 2), (0, 10)]


def test_one_copy_engine_takes_turns_for_all_ways(tmp_path: Path) -> None:
    only = round_machine(
        tmp_path,
        gpus={"name": "G", "count": 1, "arch": 90, "sms": 10, "shared_optin": 100_000,
              "copy_engines": 1, "source": "invented"},
    )  # fmt: skip
    both = task(copy("copy to host", 8)), task(copy("copy from host", 8), stream=1)
    assert times(ran(only, *both)) == [(0, 10), (10, 20)]


def test_wide_kernels_wait_for_each_other(machine: ProfileSpec) -> None:
    found = ran(machine, task(wide(10)), task(wide(10), stream=1))
    assert times(found) == [(0, 10), (10, 20)]


def test_a_wide_kernel_takes_what_is_free_and_the_rest_later(machine: ProfileSpec) -> None:
    """Six multiprocessors at once, the other four when the narrow kernel ends after 3 us."""
    found = ran(machine, task(narrow(3, sms=4)), task(wide(10), stream=1))
    assert times(found) == [(0, 3), (0, 13)]


def test_narrow_kernels_share_multiprocessors(machine: ProfileSpec) -> None:
    found = ran(machine, task(narrow(10)), task(narrow(10), stream=1))
    assert times(found) == [(0, 10), (0, 10)]


def test_narrow_kernels_share_the_memory(machine: ProfileSpec) -> None:
    found = ran(machine, task(streaming(10)), task(streaming(10), stream=1))
    assert times(found) == [(0, 20), (0, 20)]


def test_a_narrow_kernel_waits_until_a_wide_one_leaves_room(machine: ProfileSpec) -> None:
    assert times(ran(machine, task(wide(10)), task(narrow(1), stream=1)))[1] == (10, 11)
    bounded = ran(machine, task(wide(10, sms=9)), task(narrow(1, sms=1), stream=1))
    assert times(bounded)[1] == (0, 1)


def test_the_higher_priority_comes_first(machine: ProfileSpec) -> None:
    low, high = task(wide(10), stream=1), task(wide(10), stream=2, priority=-1)
    assert times(ran(machine, task(wide(5)), low, high)) == [(10, 15), (15, 25), (0, 10)]
    high = task(wide(10), (0,), stream=0, priority=-1)
    later = task(wide(1), stream=2)
    assert times(ran(machine, task(wide(5)), low, high, later))[2] == (15, 25)


def test_a_signal_waits_for_a_kernel_on_a_link_beside_it(machine: ProfileSpec) -> None:
    """Only where another stream waits for it: its own multiprocessors are free at once."""
    link, beside = task(narrow(20, is_on_link=True)), task(narrow(5), stream=1)
    after = task(narrow(1), (1,), stream=2)
    assert times(ran(machine, link, beside, after)) == [(0, 20), (0, 20), (22, 23)]
    same = task(narrow(1), (1,), stream=1)
    assert times(ran(machine, link, beside, same)) == [(0, 20), (0, 5), (6, 7)]


def test_an_op_without_work_takes_no_time(machine: ProfileSpec) -> None:
    nothing = replace(wide(0), kind=Kind.NONE, engine="none")
    found = ran(machine, task(wide(4)), task(nothing, (0,)), task(wide(4), (1,)))
    assert times(found) == [(0, 4), (5, 5), (6, 10)]


SHAPES = st.sampled_from(
    [copy("copy to host", 5), copy("copy from host", 7), wide(6), wide(4, sms=3), narrow(5),
     narrow(3, sms=2), streaming(4), narrow(6, is_on_link=True)]
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> list[Task]:
    found: list[Task] = []
    for index in range(draw(st.integers(1, 12))):
        stream = draw(st.integers(0, 3))
        behind = [at for at in range(index) if found[at].stream == stream][-1:]
        others = draw(st.lists(st.integers(0, index - 1), max_size=2)) if index else []
        before = tuple(dict.fromkeys([*behind, *others]))
        found.append(task(draw(SHAPES), before, stream, draw(st.integers(-1, 0))))
    return found


@settings(deadline=None)
@given(programs())
def test_every_op_runs_behind_all_that_it_waits_for(
    machine: ProfileSpec, tasks: list[Task]
) -> None:
    found = ran(machine, *tasks)
    for each, one in zip(tasks, found, strict=True):
        assert one.start_us <= one.stop_us < float("inf")
        assert all(found[at].stop_us < one.start_us for at in each.before)


@settings(deadline=None)
@given(programs())
def test_a_timeline_is_the_same_every_time(machine: ProfileSpec, tasks: list[Task]) -> None:
    assert ran(machine, *tasks) == ran(machine, *tasks)


@settings(deadline=None)
@given(programs())
def test_nothing_is_faster_than_alone(machine: ProfileSpec, tasks: list[Task]) -> None:
    alone = [ran(machine, replace(each, before=()))[0].stop_us for each in tasks]
    for one, least in zip(ran(machine, *tasks), alone, strict=True):
        assert one.stop_us - one.start_us >= least - 1e-6


def test_an_await_keeps_its_multiprocessor_until_the_signal_comes(machine: ProfileSpec) -> None:
    """The wide kernel beside it takes the nine others at once, and the tenth at 14."""
    signal = replace(task(narrow(10, sms=1), stream=2), place=1)
    signal = replace(signal, demand=replace(signal.demand, gpu=1))
    spin = replace(task(narrow(1, sms=1), stream=0), awaits=(0,))
    found = ran(machine, signal, spin, task(wide(20), stream=1), task(narrow(1, sms=1), (1,)))
    assert times(found) == [(0, 10), (0, 14), (0, 34), (20, 21)]
    assert found[1].cause == 0


def test_an_await_whose_signal_has_come_is_a_tiny_kernel(machine: ProfileSpec) -> None:
    signal = replace(task(narrow(3, sms=1), stream=2), place=1)
    signal = replace(signal, demand=replace(signal.demand, gpu=1))
    late = replace(task(narrow(1, sms=1), (2,)), awaits=(0,))
    assert times(ran(machine, signal, late, task(wide(20))))[1] == (21, 22)


def test_a_wide_kernel_gets_the_last_places_of_pushes_a_step_late(machine: ProfileSpec) -> None:
    """Seven of ten places when the first push ends; the next push comes 1 us later and has three.

    Of these the wide kernel gets 2.1 when that one ends, and the rest 2 us later.
    """
    push = replace(narrow(10, is_on_link=True), pushes=True)
    first, second = task(push, priority=-1), task(push, (0,), priority=-1)
    found = ran(machine, first, second, task(wide(20), stream=1))
    assert times(found) == [(0, 10), (11, 21), (10, 43)]
    pull = narrow(10, is_on_link=True)
    first, second = task(pull, priority=-1), task(pull, (0,), priority=-1)
    found = ran(machine, first, second, task(wide(20), stream=1))
    assert times(found) == [(0, 10), (30, 40), (10, 30)]
