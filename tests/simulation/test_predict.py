"""Whole schedules on machine profiles: what must hold on every machine, and tiny ones by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from machines import round_machine

import graphc
from graphc.ir import Await, Signal
from graphc.profiles import ProfileSpec
from graphc.resources import shipped
from graphc.simulation.predict import Prediction
from graphc.simulation.summary import PATH, summarize
from graphc.text.diagnostics import UsageError
from graphc.timeline import Source

MACHINES = sorted(path.stem for path in (shipped("specs") / "machines").glob("*.yaml"))
SPECS = sorted([*shipped("specs").glob("*.yaml"), *shipped("specs").glob("hand/*.yaml")])
ROUTES = ("host", "host_copy", "host_push", "p2p", "p2p_read", "p2p_write")

THERE = """
graphc: 1
name: there
devices: [near, far]
buffers:
  x: {device: near, dtype: f16, shape: [1000, 1000], role: input}
  y: {device: far, dtype: f16, shape: [1000, 1000], role: output}
ops:
  - {name: over, transfer: {source: x, target: y}}
schedule:
  over: {route: host_copy, pieces: 1}
"""


@pytest.fixture
def machine(tmp_path: Path) -> ProfileSpec:
    return round_machine(tmp_path)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    path = tmp_path / "there.yaml"
    path.write_text(THERE)
    return path


def full(machine: str | ProfileSpec = "h200x2", **values: object) -> Prediction:
    return graphc.simulate("moe_peer", machine=machine, preset="full", **values)


def test_tokens_that_are_not_in_use_cost_nothing() -> None:
    """As a spec with no more room than that; half of what is sent goes to the other GPU."""
    given = {"machine": "h200x2", "gpus": 2, "prepare": "explicit", "active": 1024, "apart": True}
    # Each rank tells the other in a word whether its preparation is fresh.
    for entry, words in (("dispatch", 2), ("combine", 0)):
        found = graphc.simulate("ep_throughput", entry=entry, capacity=4096, **given)
        tight = graphc.simulate("ep_throughput", entry=entry, capacity=1024, **given)
        flows = [flow for each in found.tasks for flow in each.demand.flows]
        moved = 2 * 1024 * 7168 * 2 + 4 * words
        assert sum(each.nbytes for each in flows) == pytest.approx(moved, abs=0.1)
        assert found.total_us == tight.total_us
        full = graphc.simulate("ep_throughput", entry=entry, **{**given, "active": 4096})
        assert full.total_us > 3 * found.total_us


def test_a_copy_down_and_up_takes_its_bytes_and_the_step_between(
    machine: ProfileSpec, there: Path
) -> None:
    """2 MB at 10 GB/s are 200 us, with 2 us for each copy and 4 us from GPU to GPU."""
    found = graphc.simulate(there, machine=machine)
    down, up = found.timeline.slices
    assert (down.start_us, down.stop_us) == pytest.approx((0, 202))
    assert (up.start_us, up.stop_us) == pytest.approx((206, 408))
    assert found.total_us == pytest.approx(408)
    assert (down.engine, up.engine) == ("copy to host", "copy from host")
    assert up.waited_for == (down.op,)
    assert found.launch_us == pytest.approx(3 + 2 * 1)  # two copies in a graph of two GPUs


def test_pieces_of_a_copy_travel_behind_each_other(machine: ProfileSpec, there: Path) -> None:
    """Two pieces of 102 us: down, down beside up, up; each way has a link of its own."""
    found = graphc.simulate(there, machine=machine, **{"schedule.over.pieces": 2})
    assert found.total_us == pytest.approx(102 + 1 + 102 + 4 + 102)


def test_a_direct_copy_needs_a_peer(machine: ProfileSpec, there: Path, tmp_path: Path) -> None:
    direct = {"schedule.over.route": "p2p"}
    assert graphc.simulate(there, machine=machine, **direct).total_us == pytest.approx(22)
    apart = round_machine(tmp_path, peer=None)
    with pytest.raises(UsageError, match="do not reach each other's memory"):
        graphc.simulate(there, machine=apart, **direct)
    (schedule, _), *_ = graphc.check(there, **direct)
    with pytest.raises(UsageError, match="host_copy"):
        graphc.simulate(schedule, machine=apart)


@pytest.mark.parametrize(
    ("name", "route"), [("h200x2", "p2p"), ("h200x2_no_p2p", "host"), ("v100x2_pcie3", "host")]
)
def test_the_machine_decides_which_route_auto_takes(name: str, route: str) -> None:
    slices = full(name, route="auto", pieces=1).timeline.slices
    assert any(f"activations/{'move' if route == 'p2p' else 'down'}" in each.op for each in slices)


@pytest.mark.parametrize("name", MACHINES)
def test_every_shipped_profile_simulates_every_shipped_spec(name: str) -> None:
    for spec in SPECS:
        found = graphc.simulate(spec, machine=name)
        summary = summarize(found)
        assert 0 < summary.lower_bound_us <= summary.total_us < float("inf"), spec
        assert all(0 < share <= 1 for share in summary.busy.values()), spec


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("pieces", [1, 5, 16])
def test_no_schedule_is_faster_than_its_bound(route: str, pieces: int) -> None:
    found = full(route=route, pieces=pieces)
    summary = summarize(found)
    assert summary.lower_bound_us == max(summary.bounds_us.values()) <= found.total_us
    assert {PATH, "primary: multiprocessors"} <= {*summary.bounds_us}


def test_a_timeline_has_every_op_once_and_streams_in_order() -> None:
    found = full(route="host", pieces=8)
    timeline = found.timeline
    assert timeline.source is Source.SIMULATED
    assert timeline.stop_us == found.total_us
    names = Counter(each.op for each in timeline.slices)
    assert names == Counter(op.name for op in found.schedule.program)
    free: dict[str, float] = {}
    for each in timeline.slices:
        assert free.get(each.stream, 0.0) <= each.ready_us <= each.start_us <= each.stop_us
        free[each.stream] = each.stop_us


def test_the_same_schedule_has_the_same_timeline() -> None:
    assert full(route="host", pieces=8).timeline == full(route="host", pieces=8).timeline


def test_a_plan_and_its_schedule_take_as_long_as_the_spec(tmp_path: Path) -> None:
    plan = graphc.compile("moe_peer", preset="small", cubins=False, arch="sm_90a")
    by_spec = graphc.simulate("moe_peer", preset="small", machine="h200x2")
    assert graphc.simulate(plan, machine="h200x2").timeline == by_spec.timeline
    schedule = by_spec.schedule
    assert graphc.simulate(schedule, machine="h200x2").timeline == by_spec.timeline


def test_fewer_rows_take_less_time() -> None:
    times = [full(count=count, pieces=4).total_us for count in (1024, 4096, 16384)]
    assert times == sorted(times)
    with pytest.raises(UsageError, match="capacity"):
        full(count=16385)


def test_faster_links_make_a_copy_bound_layer_faster(tmp_path: Path) -> None:
    slow = graphc.profiles.load_profile("v100x2_pcie3")
    faster = {
        "to_host_gb_s": 50.0,
        "from_host_gb_s": 50.0,
        "both_ways_gb_s": 50.0,
        "all_gb_s": 50.0,
    }
    fast = slow.model_copy(update={"host": slow.host.model_copy(update=faster)})
    values = {"route": "host_copy", "pieces": 8}
    assert full(fast, **values).total_us < full(slow, **values).total_us


def test_pieces_help_on_the_slow_link_and_not_on_the_fast_one() -> None:
    assert full(route="host_copy", pieces=16).total_us < full(route="host_copy", pieces=1).total_us
    assert full(route="p2p", pieces=32).total_us > full(route="p2p", pieces=1).total_us


def test_products_of_few_rows_are_bound_by_their_weights() -> None:
    """Twice as many pieces of the peer's experts read all the weights again."""
    few, many = (
        sum(each.duration_us for each in found.timeline.slices if each.step.endswith("p_up"))
        for found in (full(route="p2p", pieces=16, compute=pieces) for pieces in (2, 8))
    )
    assert many > 2 * few


def test_kernels_on_the_host_wait_for_multiprocessors_that_experts_leave_free() -> None:
    """What was measured: with 8 of 132 kept free the route by kernels gains a sixth."""
    kept = {"expert_blocks": 124, "link_blocks": 32}
    values = {"route": "host", "pieces": 16, "compute": 2}
    assert full(**values, **kept).total_us < 0.95 * full(**values).total_us


def test_the_critical_path_accounts_for_the_whole_time() -> None:
    found = full(route="host_copy", pieces=16)
    summary = summarize(found)
    path = sum(each.us + each.before_us for each in summary.critical_path)
    assert path == pytest.approx(found.total_us - found.profile.overhead.start_us / 2)
    assert {"layer.0/p_up", "layer.0/activations/down"} <= {
        each.step for each in summary.critical_path
    }


def test_ops_issued_one_by_one_wait_for_the_host() -> None:
    eager, captured = full(emit="streams", pieces=16), full(pieces=16)
    assert eager.launch_us > 10 * captured.launch_us
    assert eager.total_us > captured.total_us


def test_devices_on_one_gpu_share_it() -> None:
    apart, together = full(route="host_copy"), full(route="host_copy", devices=[0, 0])
    assert together.total_us > 1.2 * apart.total_us


def test_only_specs_take_values() -> None:
    schedule = replace(full(pieces=1).schedule)
    with pytest.raises(UsageError, match="pieces: only a spec takes values"):
        graphc.simulate(schedule, machine="h200x2", pieces=2)


def test_a_divided_layer_waits_for_its_signals() -> None:
    one, divided = (full(route="host_copy", pieces=8, units=units) for units in ("one", "device"))
    assert divided.total_us == pytest.approx(one.total_us, rel=0.05)  # awaits hold nothing up
    assert divided.launch_us < one.launch_us
    ran = list(zip(divided.orders.ops, divided.ran, strict=True))
    signals = {op.work.signal: each for op, each in ran if isinstance(op.work, Signal)}
    awaits = [(op.work, each) for op, each in ran if isinstance(op.work, Await)]
    assert len(awaits) > 8
    for work, each in awaits:
        assert all(signals[awaited.signal].stop_us < each.stop_us for awaited in work.signals)


def test_a_kernel_that_may_touch_all_ranks_moves_what_its_cost_says() -> None:
    """Rows for half of the ranks go to the other GPU, whatever room there is for them."""
    found = graphc.simulate("ep_throughput", machine="h200x2", gpus=2, ranks=4)
    tasks = dict(zip((op.step for op in found.schedule.program), found.tasks, strict=True))
    row_bytes = 7168 * 2
    for step in ("rank.0/dispatch", "rank.3/combine"):
        assert sum(each.nbytes for each in tasks[step].demand.flows) == pytest.approx(
            2 * 4096 * row_bytes, rel=0.02
        )


def test_what_a_kernel_sends_one_way_has_one_share_of_the_link() -> None:
    """Rows, ids and weights: the small ones do not slow the rows down."""
    found = graphc.simulate("ep_throughput", machine="h200x2", gpus=2)
    took = {each.op: each.stop_us - each.start_us for each in found.timeline.slices}
    rows_us = 4096 * 7168 * 2 / 398e3  # at the best rate of the link
    assert rows_us < took["rank.0/dispatch"] < 1.2 * rows_us
