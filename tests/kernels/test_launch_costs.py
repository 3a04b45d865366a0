"""What launches cost, by contracts: at a count, in pieces, and by what the op says of its sizes."""

from __future__ import annotations

import pytest

import graphc
from graphc.ir import Op, Schedule
from graphc.kernels.contract import Catalog
from graphc.kernels.costs import Cost, GpuShape, kernel_costs
from graphc.resources import kernel_folders

CATALOG = Catalog(kernel_folders())
H200 = GpuShape(arch=90, sms=132, shared_optin=232_448)
HIDDEN, FF, TOP_K, TOKENS = 2560, 640, 10, 16384


def full(**values: object) -> Schedule:
    ((schedule, _),) = graphc.check("moe_peer", preset="full", route="p2p", **values)
    return schedule


def costs(schedule: Schedule, step: str, *, count: int | None = None) -> list[tuple[Op, Cost]]:
    found = kernel_costs(schedule.program, CATALOG, H200, count=count)
    return [(op, cost) for op, cost in found if op.step == f"layer.0/{step}"]


def test_an_op_says_how_many_rows_its_experts_get() -> None:
    for experts in (128, 384):
        schedule = full(peer_experts=experts)
        rows = TOKENS * TOP_K * experts / 512
        cost = sum(cost.flops for _, cost in costs(schedule, "p_up"))
        assert cost == pytest.approx(rows * HIDDEN * 4 * FF)


def test_pieces_share_what_an_op_says() -> None:
    for step in ("p_up", "p_down", "sums", "combine"):
        whole = costs(full(pieces=1, compute=1), step)
        parts = costs(full(pieces=4, compute=4), step)
        flops = sum(cost.flops for _, cost in whole)
        assert (len(whole), len(parts)) == (1, 4)
        assert sum(cost.flops for _, cost in parts) == pytest.approx(flops)


def test_a_count_takes_its_share() -> None:
    ((_, every),) = costs(full(pieces=1, early=True), "mix")
    ((_, some),) = costs(full(pieces=1, early=True), "mix", count=TOKENS // 4)
    assert some.nbytes == pytest.approx(every.nbytes / 4)


def test_launches_have_the_shape_of_the_gpu() -> None:
    ((_, up),) = costs(full(), "up")
    assert (up.blocks, up.threads, up.dtype) == (132, 384, "f16")
    assert 200_000 < up.shared <= H200.shared_optin
    ((_, bounded),) = costs(full(expert_blocks=124), "up")
    assert bounded.blocks == 124
    ((_, mix),) = costs(full(pieces=1), "mix")
    assert (mix.blocks, mix.shared, mix.dtype) == (64 * 132, 0, "f32")
