"""Dispatch and combine on GPUs against the oracle; ranks on one GPU and on two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from expert_parallel_cases import Case, all_cases, inputs_of
from expert_parallel_runs import array, compiled, named, run_case

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.backends.reference import ReferenceGraph
from graphc.gpu.probe import gpu_count
from graphc.inputs import random_inputs
from graphc.resources import shipped
from graphc.text.diagnostics import UsageError

LAYER = shipped("specs") / "moe_ep.yaml"
two = pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")


def opened(case: Case, gpus: int, **values: Any) -> CudaGraph:
    plan = compiled(case, gpus=min(gpus, case.ranks), **values)
    return CudaGraph(plan, devices=[*range(min(gpus, case.ranks))])


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_a_case_on_one_gpu(case: Case) -> None:
    with opened(case, 1) as graph:
        run_case(case, graph)


@two
@pytest.mark.parametrize("case", [each for each in all_cases() if each.ranks > 1], ids=str)
def test_a_case_on_two_gpus(case: Case) -> None:
    with opened(case, 2) as graph:
        graph.read_back()
        run_case(case, graph)


@two
@pytest.mark.parametrize("case", [each for each in all_cases() if each.ranks == 2], ids=str)
def test_a_case_on_two_gpus_as_two_units(case: Case) -> None:
    with opened(case, 2, **{"schedule.units": "device"}) as graph:
        graph.read_back()
        run_case(case, graph)


@two
@pytest.mark.parametrize("emit", ["nodes", "streams"])
@pytest.mark.parametrize("units", ["one", "device"])
@pytest.mark.parametrize("replays", ["automatic", "rebuilt"])
def test_however_it_is_launched(emit: str, units: str, replays: str) -> None:
    case = Case(ranks=2, tokens=(40, 25), hidden=2880, top_k=8, local=64, replays=replays)
    with opened(case, 2, emit=emit, **{"schedule.units": units}) as graph:
        run_case(case, graph)


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=two)])
@pytest.mark.parametrize("replays", ["automatic", "reused"])
def test_dispatch_and_combine_are_entries_of_their_own(gpus: int, replays: str) -> None:
    case = Case(ranks=2, tokens=(9, 30), hidden=256, dtype="fp8_e4m3", replays=replays)
    with opened(case, gpus, apart=True) as graph:
        run_case(case, graph, is_apart=True)


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=two)])
def test_a_stale_preparation_is_reported_and_nothing_is_computed(gpus: int) -> None:
    case = Case(ranks=2, tokens=(40, 25), replays="explicit")
    first = inputs_of(case, 0)
    other = inputs_of(case, 1)
    with opened(case, gpus) as graph:
        graph.bind(named(first))
        graph.launch(entry="prepare")
        graph.launch(entry="step")
        graph.synchronize()
        before = [array(graph, rank, "out").tobytes() for rank in range(2)]
        graph.bind(named(replace(other, ids=[first.ids[0], other.ids[1]], tokens=first.tokens)))
        for _ in range(3):
            graph.launch(entry="step")
            with pytest.raises(UsageError, match="the preparation is older than the routing"):
                graph.synchronize()
            assert [array(graph, rank, "out").tobytes() for rank in range(2)] == before
        graph.launch(entry="prepare")
        graph.launch(entry="step")
        graph.synchronize()
        assert [array(graph, rank, "out").tobytes() for rank in range(2)] != before


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=two)])
@pytest.mark.parametrize("layout", ["token_major", "rank_major"])
@pytest.mark.parametrize("split", [{}, {"per_rank": 5, "holders": 1}], ids=["even", "peer"])
def test_the_layer_with_experts_means_its_reference(
    split: dict[str, Any], layout: str, gpus: int
) -> None:
    plan = graphc.compile(LAYER, preset="small", cubins=False, gpus=gpus, layout=layout, **split)
    inputs = random_inputs(plan, seed=5)
    with ReferenceGraph(plan) as graph:
        graph.bind({name: value.copy() for name, value in inputs.items()})
        graph.launch()
        wanted = [np.array(graph[f"rank.{rank}/out"]) for rank in range(2)]
    with CudaGraph(plan, devices=[*range(gpus)]) as graph:
        graph.bind(inputs)
        for _ in range(3):
            graph.poison()
            graph.launch()
            graph.synchronize()
            for rank, expected in enumerate(wanted):
                used = int(inputs[f"rank.{rank}/tokens"][0])
                found = array(graph, rank, "out")[:used].astype(np.float32)
                near = np.isclose(found, expected[:used].astype(np.float32), rtol=0.03, atol=0.01)
                assert near.all(axis=1).sum() >= 0.9 * used  # where no other expert won
