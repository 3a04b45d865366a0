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


CAPACITY, ACTIVE, ROW, RANKS, CHOICES = 4096, 1024, 7168, 2, 8


def exchange(step: str, **values: object) -> list[Cost]:
    """The costs of one op of ``ep_throughput`` on rank 0, all of its pieces."""
    given = {"capacity": CAPACITY, "active": ACTIVE, "ranks": RANKS, "prepare": "explicit"}
    found = graphc.check("ep_throughput", **{**given, **values})
    every = (one for schedule, _ in found for one in kernel_costs(schedule.program, CATALOG, H200))
    return [cost for op, cost in every if op.step == f"rank.0/{step}"]


@pytest.mark.parametrize(
    ("step", "values", "nbytes", "at_peers"),
    [
        # Ids of 8 bytes are read, and an entry of 8 bytes is written for each rank.
        ("count", {}, ACTIVE * (8 * CHOICES + 8 * RANKS), None),
        ("fresh", {}, ACTIVE * 8 * CHOICES, None),
        # A row of bf16 is read once and stored on each of two ranks.
        ("dispatch", {}, ACTIVE * ROW * 2 * 3, ACTIVE * ROW * 2 * 2),
        ("dispatch", {"dtype": "fp8_e4m3"}, ACTIVE * ROW * 3, ACTIVE * ROW * 2),
        ("quantise", {"dtype": "fp8_e4m3"}, ACTIVE * ROW * 3, None),
        (
            "dispatch_quant",
            {"dtype": "fp8_e4m3", "quant": "fused"},
            ACTIVE * ROW * (2 + 2),
            ACTIVE * ROW * 2,
        ),
        # Both ranks send each of their rows, which are read and written.
        ("expert", {}, 2 * ACTIVE * ROW * 4, None),
        ("expert", {"dtype": "fp8_e4m3"}, 2 * ACTIVE * ROW * 3, None),
        ("expert_in_place", {"shared_buffer": True}, 2 * ACTIVE * ROW * 4, None),
        # Of 64 ranks a token goes to as many as it has choices at most: 8.
        ("expert", {"ranks": 64}, 8 * ACTIVE * ROW * 4, None),
        # Two rows are gathered, one is written.
        ("combine", {}, ACTIVE * ROW * 2 * 3, ACTIVE * ROW * 2 * 2),
        ("combine", {"ranks": 64}, ACTIVE * ROW * 2 * 9, ACTIVE * ROW * 2 * 8),
    ],
)
def test_costs_of_an_exchange_follow_the_tokens_in_use_at_most(
    step: str, values: dict[str, object], nbytes: int, at_peers: int | None
) -> None:
    (cost,) = exchange(step, **values)
    assert cost.nbytes == nbytes
    assert cost.peers_nbytes == (nbytes if at_peers is None else at_peers)
    (full_one,) = exchange(step, **values, active=CAPACITY)
    assert full_one.nbytes == 4 * nbytes


@pytest.mark.parametrize("step", ["dispatch", "combine"])
def test_pieces_of_an_exchange_share_the_tokens_in_use(step: str) -> None:
    parts = exchange(step, **{f"schedule.{step}.pieces": 4})
    assert len(parts) == 4
    assert sum(each.nbytes for each in parts) == ACTIVE * ROW * 2 * 3
    assert sum(each.peers_nbytes for each in parts) == ACTIVE * ROW * 2 * 2


def test_launches_have_the_shape_of_the_gpu() -> None:
    ((_, up),) = costs(full(), "up")
    assert (up.blocks, up.threads, up.dtype) == (132, 384, "f16")
    assert 200_000 < up.shared <= H200.shared_optin
    ((_, bounded),) = costs(full(expert_blocks=124), "up")
    assert bounded.blocks == 124
    ((_, mix),) = costs(full(pieces=1), "mix")
    assert (mix.blocks, mix.shared, mix.dtype) == (64 * 132, 0, "f32")
