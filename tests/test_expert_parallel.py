"""Dispatch and combine over ranks: the shipped spec on the reference, against the oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expert_parallel_cases import (
    AXES,
    Case,
    all_cases,
    inputs_of,
    is_possible,
    large_cases,
    pairs_of_axes,
    replays,
    small_cases,
)
from expert_parallel_oracle import Job, expected
from expert_parallel_runs import SPEC, array, compiled, named, run_case

import graphc
from graphc.backends.reference import ReferenceGraph
from graphc.bits import digest
from graphc.cli.guard import guarded
from graphc.inputs import random_inputs
from graphc.resources import shipped
from graphc.text.diagnostics import SpecError, UsageError

LAYER = shipped("specs") / "moe_ep.yaml"
TOKENS = ("rank.0/tokens", "rank.1/tokens")


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_a_case_leaves_what_the_oracle_says(case: Case) -> None:
    with ReferenceGraph(compiled(case)) as graph:
        run_case(case, graph)


def test_the_list_has_every_pair_of_values() -> None:
    seen = {
        pair
        for case in small_cases()
        for pair in combinations([(name, getattr(case, name)) for name in AXES], 2)
    }
    assert {pair for pair in pairs_of_axes() if is_possible(dict(pair))} <= seen


def test_the_list_has_every_size() -> None:
    cases = [*large_cases()]
    assert {each.hidden for each in cases} >= {136, 2880, 4096, 7168, 9216}
    assert {number for each in cases for number in each.tokens} >= {0, 1, 67, 1025, 4097}


@pytest.mark.parametrize(("replays_", "dtype"), [("automatic", "fp8_e4m3"), ("reused", "bf16")])
def test_dispatch_and_combine_are_entries_of_their_own(replays_: str, dtype: str) -> None:
    case = Case(replays=replays_, dtype=dtype, hidden=256, ranks=3, tokens=(4, 0, 7))
    with ReferenceGraph(compiled(case, apart=True)) as graph:
        run_case(case, graph, is_apart=True)


@pytest.mark.parametrize("units", ["device", "rank"])
@pytest.mark.parametrize("replays_", ["automatic", "rebuilt"])
def test_units_change_nothing(units: str, replays_: str) -> None:
    case = Case(ranks=4, tokens=(5, 0, 3, 8), replays=replays_)
    with ReferenceGraph(compiled(case, gpus=4, **{"schedule.units": units})) as graph:
        run_case(case, graph)


def job_of(made: dict[str, Any], *, ranks: int, layout: str) -> Job:
    """The job of made-up inputs of the preset ``small``."""
    given = {
        name: [made.get(f"rank.{rank}/{name}") for rank in range(ranks)]
        for name in ("x", "topk", "topk_w", "tokens")
    }
    return Job(
        x=[each.view(np.uint16) for each in given["x"]],
        ids=given["topk"],
        weights=given["topk_w"] if given["topk_w"][0] is not None else None,
        tokens=[int(each[0]) for each in given["tokens"]],
        experts=3 * ranks,
        layout=layout,
        stride=8,
        is_fp8=False,
    )


@pytest.mark.parametrize("null", [(), ("topk_w",)])
@pytest.mark.parametrize("layout", AXES["layout"])
@pytest.mark.parametrize("ranks", [1, 5, 64])
def test_what_a_run_makes_up_is_routed_as_the_oracle_says(
    ranks: int, layout: str, null: tuple[str, ...]
) -> None:
    plan = graphc.compile(SPEC, preset="small", cubins=False, ranks=ranks, layout=layout)
    made = random_inputs(plan, null=null)
    job = job_of(made, ranks=ranks, layout=layout)
    assert (job.weights is None) == bool(null)
    assert 0.8 < np.mean([(ids >= 0) & (ids < 3 * ranks) for ids in job.ids]) < 1
    with ReferenceGraph(plan) as graph:
        graph.bind(made)
        graph.launch()
        for rank, each in enumerate(expected(job)):
            out = array(graph, rank, "out")[: job.tokens[rank]].view(np.uint16)
            assert np.array_equal(out, np.array(each.out).reshape(out.shape))
            assert array(graph, rank, "received").tolist() == each.received


@pytest.mark.parametrize("null", [[], ["topk_w"], ["rank.0/topk_w", "rank.1/topk_w"]])
def test_the_command_gives_optional_weights_or_leaves_them_null(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, null: list[str]
) -> None:
    plan = graphc.compile(SPEC, preset="small", cubins=False, capacity=8)
    every = np.array([8], np.int32)
    np.save(tmp_path / "tokens.npy", every)
    made = random_inputs(plan, seed=7, null=null) | dict.fromkeys(TOKENS, every)
    words = [f"--input={name}={tmp_path / 'tokens.npy'}" for name in TOKENS]
    words += [f"--null={name}" for name in null]
    words += ["--preset=small", "--set=capacity=8", "--seed=7", "--backend=reference", "--json"]
    assert guarded(["run", str(SPEC), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["null"] == null
    for rank, each in enumerate(expected(job_of(made, ranks=2, layout="token_major"))):
        assert told["outputs"][f"rank.{rank}/out"]["digest"] == digest(np.array(each.out))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--null=topkw"], "'topkw' is no optional input, so it cannot be null: did you mean"),
        (["--null=x"], "'x' is no optional input, so it cannot be null: there are topk_w"),
        (["--null=topk_w", "--set=meta=false"], "so it cannot be null: there is none"),
        (
            ["--null=topk_w", "--input=rank.1/topk_w={}"],
            "--input gives 'rank.1/topk_w' an array, --null none: which?",
        ),
    ],
)
def test_what_cannot_be_null_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], message: str
) -> None:
    np.save(tmp_path / "w.npy", np.zeros((16, 4), np.float32))
    words = [each.format(tmp_path / "w.npy") for each in words]
    assert guarded(["run", str(SPEC), "--preset=small", "--backend=reference", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_command_runs_it_on_many_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    command = "run specs/ep_throughput.yaml --preset small --backend reference --set ranks=64"
    assert guarded([*command.split(), "--set", "layout=rank_major", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    assert sum(name.endswith("/out") for name in told["outputs"]) == 64


# ---- with experts -------------------------------------------------------------------------------


def wide(values: Any) -> Any:
    return np.asarray(values).astype(np.float64)


def layer_row(inputs: dict[str, Any], rank: int, token: int, *, local: int, top_k: int) -> Any:
    """What the layer makes of one token, by the formula."""
    x = wide(inputs[f"rank.{rank}/x"][token])
    logits = wide(inputs[f"rank.{rank}/w_route"]) @ x
    chosen = np.argsort(-logits, kind="stable")[:top_k]
    share = np.exp(logits[chosen] - logits.max())
    result = np.zeros_like(x)
    for expert, weight in zip(chosen, share / share.sum(), strict=True):
        up = wide(inputs[f"rank.{expert // local}/w_up"][expert % local])
        down = wide(inputs[f"rank.{expert // local}/w_down"][expert % local])
        gate, value = np.split(up @ x, 2)
        result += weight * (down @ (gate / (1 + np.exp(-gate)) * value))
    return result


@pytest.mark.parametrize("layout", AXES["layout"])
@pytest.mark.parametrize(("ranks", "per_rank"), [(1, 0), (3, 0), (3, 5), (8, 0)])
def test_the_layer_with_experts_is_what_its_formula_says(
    ranks: int, per_rank: int, layout: str
) -> None:
    """Also where the last of three ranks has 2 experts, and the others 5 each."""
    values: dict[str, Any] = {"ranks": ranks, "per_rank": per_rank, "layout": layout}
    plan = graphc.compile(LAYER, preset="small", cubins=False, **values)
    inputs = random_inputs(plan, seed=ranks)
    with ReferenceGraph(plan) as graph:
        graph.bind(inputs)
        for seed in (None, 1):  # in order, and in another order that is allowed
            graph.poison()
            graph.launch(seed=seed)
            graph.synchronize()
            for rank in range(ranks):
                out = wide(graph[f"rank.{rank}/out"])
                for token in range(int(inputs[f"rank.{rank}/tokens"][0])):
                    row = layer_row(inputs, rank, token, local=per_rank or 4, top_k=3)
                    np.testing.assert_allclose(out[token], row, rtol=0.05, atol=0.02)


# ---- what is refused or reported ----------------------------------------------------------------


def stale(graph: Any, case: Case, ids: list[Any]) -> None:
    """A step whose ids are not those of its preparation."""
    first = inputs_of(case, 0)
    graph.bind(named(first))
    graph.launch(entry="prepare")
    graph.launch(entry="step")
    graph.synchronize()
    before = [array(graph, rank, "out").tobytes() for rank in range(case.ranks)]
    graph.bind(named(replace(first, ids=ids)))
    graph.launch(entry="step")
    with pytest.raises(UsageError, match="the preparation is older than the routing"):
        graph.synchronize()
    assert [array(graph, rank, "out").tobytes() for rank in range(case.ranks)] == before
    graph.launch(entry="prepare")
    graph.launch(entry="step")
    graph.synchronize()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_preparation_older_than_one_ranks_routing_is_reported_and_nothing_is_computed(
    rank: int,
) -> None:
    case = Case(ranks=3, tokens=(4, 5, 2), replays="explicit")
    ids = [each.copy() for each in inputs_of(case, 0).ids]
    ids[rank][case.tokens[rank] - 1, -1] ^= 1
    with ReferenceGraph(compiled(case)) as graph:
        stale(graph, case, ids)


def test_a_number_of_tokens_that_changed_is_a_stale_preparation() -> None:
    case = Case(ranks=2, tokens=(4, 4), replays="explicit")
    first = inputs_of(case, 0)
    with ReferenceGraph(compiled(case)) as graph:
        graph.bind(named(first))
        graph.launch(entry="prepare")
        graph.bind(named(replace(first, tokens=[4, 3])))
        graph.launch(entry="step")
        with pytest.raises(
            UsageError, match=r"op 'rank.1/fresh': .* launch the entry 'prepare' again"
        ):
            graph.synchronize()


def test_ids_behind_the_tokens_in_use_are_no_part_of_the_routing() -> None:
    case = Case(ranks=2, tokens=(4, 4), replays="explicit")
    first = inputs_of(case, 0)
    ids = [each.copy() for each in first.ids]
    ids[0][4:] = 0
    with ReferenceGraph(compiled(case)) as graph:
        graph.bind(named(first))
        graph.launch(entry="prepare")
        graph.bind(named(replace(first, ids=ids)))
        graph.launch(entry="step")
        graph.synchronize()


@pytest.mark.parametrize("replays_", ["automatic", "explicit"])
def test_tokens_beyond_the_active_capacity_are_left_out_and_reported(replays_: str) -> None:
    case = Case(ranks=2, tokens=(4, 4), replays=replays_)
    with ReferenceGraph(compiled(case)) as graph:
        graph.bind(named(replace(inputs_of(case, 0), tokens=[case.active + 1, 4])))
        graph.launch(entry="prepare" if case.is_explicit else "step")
        with pytest.raises(UsageError, match="more tokens than the active capacity"):
            graph.synchronize()


def test_a_step_that_was_never_prepared_is_reported() -> None:
    case = Case(ranks=2, replays="explicit", tokens=(0, 0))
    with ReferenceGraph(compiled(case)) as graph:
        graph.bind(named(replays(case)[0].inputs))
        graph.launch(entry="step")
        with pytest.raises(UsageError, match="older than the routing"):
            graph.synchronize()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ranks": 65}, "'ranks' is 65, but must be at most 64"),
        ({"ranks": 0}, "'ranks' is 0, but must be at least 1"),
        ({"top_k": 33}, "'top_k' is 33, but must be at most 32"),
        ({"top_k": 0}, "'top_k' is 0, but must be at least 1"),
        ({"active": 17}, "active (17) is above capacity (16)"),
        ({"hidden": 140}, "hidden (140) is no multiple of 8: a row of 280 bytes"),
        ({"dtype": "fp8_e4m3"}, "hidden (136) is no multiple of 128"),
        ({"ranks": 3, "experts": 128}, "experts (128) is no multiple of ranks (3)"),
        ({"capacity": 2**26}, "'capacity' is 67108864, but must be at most 1048576"),
        (
            {"dtype": "fp8_e4m3", "hidden": 128, "shared_buffer": True},
            "cannot lie where rows of fp8_e4m3 were received",
        ),
    ],
)
def test_a_limit_is_told_with_its_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        graphc.check(SPEC, preset="small", **values)
    assert message in str(caught.value)


def test_the_same_rows_in_both_layouts_leave_the_same_bits() -> None:
    found = []
    for layout in AXES["layout"]:
        case = Case(ranks=4, tokens=(9, 2, 0, 5), top_k=3)
        with ReferenceGraph(compiled(case, layout=layout)) as graph:
            graph.bind(named(inputs_of(case, 0)))
            graph.launch()
            found.append([np.array(array(graph, rank, "out")) for rank in range(case.ranks)])
    for one, two in zip(*found, strict=True):
        assert one.tobytes() == two.tobytes()
