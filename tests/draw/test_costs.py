"""How long kernels are drawn: by the costs in their contracts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import graphc
from graphc.cli.guard import guarded
from graphc.draw.costs import kernel_durations
from graphc.draw.swimlanes import swimlanes
from graphc.draw.timeline import NOMINAL, OP_US, timeline
from graphc.ir import Schedule
from graphc.kernels.contract import Catalog
from graphc.resources import kernel_folders, shipped

CATALOG = Catalog(kernel_folders())


def full(route: str = "host", **values: Any) -> Schedule:
    ((schedule, _),) = graphc.check("moe_peer", preset="full", route=route, **values)
    return schedule


def by_step(schedule: Schedule) -> Counter[str]:
    durations = kernel_durations(schedule, CATALOG)
    found: Counter[str] = Counter()
    for op in schedule.program:
        found[op.step.removeprefix("layer.0/")] += durations.get(op.name, 0.0)  # type: ignore[assignment]
    return found


def test_products_take_as_long_as_their_arithmetic() -> None:
    """81,920 rows of 2,560 by 2 x 640 are 0.54 Tflop: a millisecond at the nominal rate."""
    took = by_step(full(pieces=16, compute=1))
    flops = 16384 * 5 * 2560 * 4 * 640  # half of the rows are for the experts of each device
    assert took["up"] == pytest.approx(OP_US + flops / NOMINAL.flops_per_us)
    assert took["p_up"] == took["up"] > 5 * took["mix"] > 25 * took["group"]


def test_products_of_few_rows_take_as_long_as_their_weights() -> None:
    took = by_step(full(pieces=16, compute=8))
    weights = 256 * 2560 * 2 * 640 * 2
    assert took["p_up"] > 8 * weights / NOMINAL.memory_bytes_per_us > 2 * took["up"]


def test_pieces_share_the_work() -> None:
    one, many = by_step(full(pieces=1, compute=1)), by_step(full(pieces=16, compute=1))
    for step in ("mix", "combine", "add", "activations/up"):
        assert many[step] == pytest.approx(one[step] + 15 * OP_US)


def test_a_kernel_on_the_link_takes_as_long_as_its_bytes_there() -> None:
    nbytes = 16384 * 2560 * 2
    host, peer = by_step(full("host", pieces=1)), by_step(full("p2p_read", pieces=1))
    assert host["activations/up"] == pytest.approx(OP_US + nbytes / NOMINAL.host_bytes_per_us)
    assert peer["activations/pull"] == pytest.approx(OP_US + nbytes / NOMINAL.peer_bytes_per_us)


def test_every_shipped_kernel_has_a_cost() -> None:
    small = graphc.check("moe_peer", preset="small", wire="f32")
    durations = [kernel_durations(schedule, CATALOG) for schedule, _ in small]
    for (schedule, _), found in zip(small, durations, strict=True):
        kernels = {op.name for op in schedule.program if op.work.kind == "kernel"}
        assert {*found} == kernels
        assert all(each >= OP_US for each in found.values())


def test_a_contract_that_only_shares_the_name_is_not_asked(tmp_path: Path) -> None:
    text = (shipped("templates") / "rms_mix.cu.j2").read_text()
    (tmp_path / "rms_mix.cu.j2").write_text(text.replace("hidden", "width"))
    schedule = full(pieces=1)
    found = kernel_durations(schedule, Catalog([tmp_path, *kernel_folders()]))
    assert "layer.0/mix" not in found
    assert "layer.0/up" in found
    guessed = {box.op: box.stop_us - box.start_us for box in timeline(schedule).boxes}
    assert guessed["layer.0/mix"] > OP_US


def test_a_plan_is_drawn_like_its_spec(tmp_path: Path) -> None:
    spec, plan = tmp_path / "spec.svg", tmp_path / "plan.svg"
    words = ["--preset", "small", "--set", "route=host"]
    assert guarded(["show", "moe_peer", *words, "--svg", str(spec)]) == 0
    target = str(tmp_path / "moe.graphc")
    assert guarded(["compile", "moe_peer", *words, "--no-cubins", "-o", target]) == 0
    assert guarded(["show", target, "--svg", str(plan)]) == 0
    assert spec.read_text() == plan.read_text()
    assert "estimated at nominal rates" in spec.read_text()


def test_no_tick_is_written_over_the_basis() -> None:
    picture = swimlanes(full(pieces=1), basis="measured " * 30)
    ticks = [line for line in picture.splitlines() if 'class="tick"' in line]
    assert len(ticks) < len([line for line in picture.splitlines() if 'class="grid"' in line])
