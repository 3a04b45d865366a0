"""The peer layer's job as that of two ranks, one of which has no tokens.

Inputs are of few bits, so that no product is rounded before it is narrowed to bf16: then every bit
of both layers is known, and what tells them apart is where they round a token's two shares.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from peer_layer_oracle import Experts, activations, bf16, shares

import graphc
from graphc.backends.reference import ReferenceGraph
from graphc.cli.guard import guarded
from graphc.resources import shipped
from graphc.text.diagnostics import SpecError, UsageError

Array: TypeAlias = NDArray[Any]
RANKS, PEER = (shipped("specs") / f"{name}.yaml" for name in ("moe_ep", "moe_peer"))
TOKENS, EXPERTS, TOP_K, HIDDEN, FF = 19, 16, 4, 64, 32
SIZES: dict[str, Any] = {"experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "ff": FF}
ROUNDING = 2.0**-8  # of bf16, to the nearest, relative
UNUSED = np.nan  # what no result may hang on


@dataclass(frozen=True)
class Job:
    residual: Array  # [tokens, hidden], f32
    norm_w: Array
    x: Array  # what the norm makes of it, bf16
    experts: Experts


def drawn() -> Job:
    """Signs times the norm's weights; gates so large that their sigmoid is 1."""
    random = np.random.default_rng(7)
    residual = random.choice([-1, 1], (TOKENS, HIDDEN)).astype(np.float32)
    residual[:, 0] = 1
    norm_w = random.choice([0.5, 0.75, 1, 1.25], HIDDEN).astype(np.float32)
    up = random.integers(-2, 3, (EXPERTS, 2 * FF, HIDDEN)) / 16
    up[:, :FF, 0] = 64
    experts = Experts(
        route=few_bits(random.integers(-8, 9, (EXPERTS, HIDDEN)) / 64),
        up=few_bits(up),
        down=few_bits(random.integers(-1, 2, (EXPERTS, HIDDEN, FF)) / 64),
    )
    x = np.array([activations(row, norm_w) for row in residual])
    return Job(residual, norm_w, few_bits(x), experts)


def few_bits(values: Array) -> Array:
    found = values.astype(ml_dtypes.bfloat16)
    assert (found.astype(values.dtype) == values).all()
    return found


def on_ranks(job: Job, home: int, share: int, capacity: int) -> dict[str, Array]:
    """The inputs of both ranks, with all tokens on ``home``."""
    found: dict[str, Array] = {}
    for rank, own in enumerate((slice(0, share), slice(share, EXPERTS))):
        x = np.full((capacity, HIDDEN), UNUSED, ml_dtypes.bfloat16)
        route = np.full_like(job.experts.route, UNUSED)
        if rank == home:
            x[:TOKENS], route = job.x, job.experts.route
        found |= {
            f"rank.{rank}/tokens": np.array([TOKENS if rank == home else 0], np.int32),
            f"rank.{rank}/x": x,
            f"rank.{rank}/w_route": route,
            f"rank.{rank}/w_up": job.experts.up[own],
            f"rank.{rank}/w_down": job.experts.down[own],
        }
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def all_shares(job: Job, own: range) -> tuple[Array, Array]:
    """[tokens, hidden] each, f32: those of the tokens' own device, and those of the other."""
    here, there = zip(*(shares(x, job.experts, TOP_K, {*own}) for x in job.x), strict=True)
    return np.array(here), np.array(there)


@pytest.mark.parametrize("units", ["one", "device"])
@pytest.mark.parametrize("layout", ["token_major", "rank_major"])
@pytest.mark.parametrize(
    ("per_rank", "home", "holders"), [(0, 0, 1), (0, 0, 0), (0, 1, 0), (13, 0, 1), (13, 1, 0)]
)
def test_two_ranks_of_which_one_has_tokens_are_the_peer_layer(
    per_rank: int, home: int, holders: int, layout: str, units: str
) -> None:
    """Shares as the peer layer's, the own one rounded to bf16, too, and their sum once more."""
    job, first = drawn(), per_rank or EXPERTS // 2
    values: dict[str, Any] = {**SIZES, "per_rank": per_rank, "holders": holders, "layout": layout}
    plan = graphc.compile(RANKS, cubins=False, capacity=24, gpus=2, units=units, **values)
    own = range(first) if home == 0 else range(first, EXPERTS)
    here, there = all_shares(job, own)
    with ReferenceGraph(plan) as graph:
        graph.bind(on_ranks(job, home, first, capacity=24))
        for seed in (None, 1, 2):
            graph.poison()
            before = [np.array(graph[f"rank.{rank}/out"]) for rank in range(2)]
            graph.launch(seed=seed)
            graph.synchronize()
            found = np.array(graph[f"rank.{home}/out"])
            expected = bf16(bf16(here) + bf16(there)).astype(ml_dtypes.bfloat16)
            assert found[:TOKENS].tobytes() == expected.tobytes()
            assert found[TOKENS:].tobytes() == before[home][TOKENS:].tobytes()
            kept = np.array(graph[f"rank.{1 - home}/out"])
            assert kept.tobytes() == before[1 - home].tobytes()


@pytest.mark.parametrize("wire", ["bf16", "f32"])
@pytest.mark.parametrize("peer_experts", [3, 8])
def test_the_peer_layer_differs_from_it_by_roundings_of_bf16_alone(
    peer_experts: int, wire: str
) -> None:
    """Its shares have the same bits; without the shared expert the residual gets their f32 sum."""
    job, first = drawn(), EXPERTS - peer_experts
    kinds: dict[str, Any] = {"dtype": "bf16", "rows": "bf16", "wire": wire}
    plan = graphc.compile(
        PEER, cubins=False, tokens=TOKENS, peer_experts=peer_experts, pieces=3, **SIZES, **kinds
    )
    zeros = {"ws_up": (2 * FF, HIDDEN), "ws_down": (HIDDEN, FF), "ws_gate": (1, HIDDEN)}
    weights = {name: np.zeros(shape, ml_dtypes.bfloat16) for name, shape in zeros.items()}
    weights |= {"norm_w": job.norm_w, "w_route": job.experts.route}
    for prefix, own in (("", slice(0, first)), ("p_", slice(first, EXPERTS))):
        weights[f"{prefix}w_up"] = np.ascontiguousarray(job.experts.up[own])
        weights[f"{prefix}w_down"] = np.ascontiguousarray(job.experts.down[own])
    here, there = all_shares(job, range(first))
    total = here + (bf16(there) if wire == "bf16" else there)
    with ReferenceGraph(plan) as graph:
        graph.bind({f"layer.0/{name}": value for name, value in weights.items()})
        graph.bind(residual=job.residual.copy())
        graph.launch()
        graph.synchronize()
        assert np.array(graph["residual"]).tobytes() == (job.residual + total).tobytes()
    of_ranks = bf16(bf16(here) + bf16(there))
    apart = np.abs(of_ranks - total)
    sizes = np.abs(here) + np.abs(there) + np.abs(of_ranks)
    assert (apart <= ROUNDING * sizes).all()
    assert (bf16(total) != of_ranks).any()  # not only the result is rounded, the own share is, too


def test_a_rank_that_may_have_no_tokens_but_has_some_is_reported() -> None:
    job = drawn()
    plan = graphc.compile(RANKS, cubins=False, capacity=24, holders=1, **SIZES)
    with ReferenceGraph(plan) as graph:
        graph.bind(on_ranks(job, 0, EXPERTS // 2, capacity=24))
        graph.bind({"rank.1/tokens": np.array([1], np.int32)})
        graph.launch()
        with pytest.raises(UsageError, match=r"rank\.1/count.* more tokens than the active"):
            graph.synchronize()


@pytest.mark.parametrize(("per_rank", "left"), [(3, 5), (8, 0), (9, -1)])
def test_a_last_rank_with_none_or_too_many_experts_is_told(per_rank: int, left: int) -> None:
    with pytest.raises(SpecError) as caught:
        graphc.check(RANKS, preset="small", per_rank=per_rank)
    (problem,) = caught.value.diagnostics
    said = f"with per_rank {per_rank} the last of 2 ranks would have {left} of 8 experts"
    assert problem.message.startswith(said)


def test_more_ranks_with_tokens_than_there_are_is_told() -> None:
    with pytest.raises(SpecError, match=r"holders \(3\) is above ranks \(2\)"):
        graphc.check(RANKS, preset="small", holders=3)


def test_the_command_runs_it_with_the_tokens_on_one_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made up by ``holders``, or from files: the same bits."""
    command = "run moe_ep --preset small --backend reference --json --set gpus=2 --set per_rank=5"
    assert guarded([*command.split(), "--set", "holders=1", "--compare", "units=device"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    np.save(tmp_path / "none.npy", np.zeros(1, np.int32))
    tokens = f"rank.1/tokens={tmp_path / 'none.npy'}"
    assert guarded([*command.split(), "--input", tokens]) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert told["outputs"]["rank.0/out"] == by_file["outputs"]["rank.0/out"]
    assert told["outputs"]["rank.1/received"] == by_file["outputs"]["rank.1/received"]


def test_the_peer_layers_size_is_proven() -> None:
    sizes = ("hidden", "experts", "top_k", "ff")
    plan = graphc.compile(RANKS, cubins=False, preset="peer")
    other = graphc.compile(PEER, cubins=False)
    assert [plan.params[name] for name in sizes] == [other.params[name] for name in sizes]
    assert plan.params["capacity"] == other.params["tokens"]
    assert [plan.params[name] for name in ("ranks", "gpus", "holders")] == [2, 2, 1]
    ((_, proof),) = graphc.check(RANKS, preset="peer", units="device", launch="free")
    assert (proof.units, proof.awaits, proof.handshakes) == (2, 6, 0)
