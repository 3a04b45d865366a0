"""Specs of many ranks and several entries over the fake driver: tables of pointers, guards, counts
of launches by entry, status buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver
from test_cuda_plans import References, named_cubins

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.backends.reference import ReferenceGraph
from graphc.gpu.protocol import KernelCall
from graphc.inputs import random_inputs
from graphc.ir import Emit
from graphc.plan import Plan
from graphc.text.diagnostics import CompilerBug, CudaError, UsageError

FOLDER = Path(__file__).parent.parent / "units"
EXPLICIT = {"mode": "explicit"}


def rounds(**values: Any) -> Plan:
    spec = FOLDER / "rounds.yaml"
    plan = graphc.compile(spec, kernels=FOLDER, cubins=False, arch="sm_90a", **values)
    return named_cubins(plan)


def opened(plan: Plan, **fake: Any) -> CudaGraph:
    meanings = References(plan)
    driver = RecordingDriver(**{"gpus": 4, **fake}, kernels=meanings.kernels())
    meanings.graph = CudaGraph(plan, driver=driver, wait_limit_s=3)
    return meanings.graph


def driver_of(graph: CudaGraph) -> RecordingDriver:
    found = graph._driver
    assert isinstance(found, RecordingDriver)
    return found


def values(graph: Any, seed: int) -> dict[str, list[Any]]:
    random, ranks = np.random.default_rng(seed), graph.plan.params["ranks"]
    width = graph.plan.params["width"]
    return {
        "x": [random.standard_normal(width).astype(np.float32) for _ in range(ranks)],
        "key": [np.full(1, seed, np.uint32) for _ in range(ranks)],
    }


def results(graph: Any) -> list[Any]:
    ranks = graph.plan.params["ranks"]
    return [np.array(np.asarray(graph[f"rank.{rank}/y"])) for rank in range(ranks)]


def check_rounds(plan: Plan, **fake: Any) -> None:
    """Some replays with other inputs each leave what the reference does."""
    reference = ReferenceGraph(plan)
    with opened(plan, **fake) as graph:
        driver = driver_of(graph)
        for seed in range(4):
            for each in (graph, reference):
                each.bind(values(each, seed))
                for entry in reversed(each.entries):
                    each.launch(entry=entry)
                each.synchronize()
            for ours, wanted in zip(results(graph), results(reference), strict=True):
                assert np.array_equal(ours, wanted)
        if plan.variants[0].schedule.emit is not Emit.STREAMS:
            graph.read_back()
    assert not driver.leaks()


@pytest.mark.parametrize("mode", ["automatic", "explicit"])
@pytest.mark.parametrize(
    "division",
    [
        {"ranks": 1, "gpus": 1},
        {"ranks": 3, "gpus": 1},
        {"ranks": 5, "gpus": 2},
        {"ranks": 5, "gpus": 2, "units": "device"},
        {"ranks": 4, "gpus": 4, "units": "rank"},
        {"ranks": 9, "gpus": 4, "units": "device", "launch": "free"},
        {"ranks": 4, "gpus": 2, "units": "device", "sync": "memops"},
        {"ranks": 4, "gpus": 2, "units": "device", "emit": "nodes"},
        {"ranks": 4, "gpus": 2, "units": "device", "emit": "streams", "launch": "free"},
    ],
    ids=str,
)
def test_ranks_mean_what_the_reference_does(division: Any, mode: str) -> None:
    check_rounds(rounds(**division, mode=mode), seed=5)


def test_two_ranks_on_one_gpu_are_nothing_special() -> None:
    check_rounds(rounds(ranks=4, gpus=2), gpus=1)


def test_a_table_of_pointers_is_an_argument_by_value() -> None:
    with opened(rounds(ranks=3, gpus=2)) as graph:
        work = graph._session.work  # type: ignore[union-attr]
        graph.upload()
        for rank in range(3):
            call = work.launches[f"rank.{rank}/give"]
            inboxes = tuple(graph[f"rank.{each}/inbox"].pointer for each in range(3))
            assert call.arguments[2] == ("3Q", inboxes)
            assert call.arguments[-1] == ("Q", 0)  # the guard of a plan of one unit


def test_another_pointer_in_a_table_is_told_apart() -> None:
    with opened(rounds(ranks=3, gpus=2)) as graph:
        graph.upload()
        built = graph._executable.built
        assert built is not None
        node = driver_of(graph).node(built.nodes["rank.1/give"][0])
        before = node.call
        assert isinstance(before, KernelCall)
        (x, agreed, (code, table), *others) = before.arguments
        assert isinstance(table, tuple)
        swapped = (code, (table[1], table[0], table[2]))
        node.call = KernelCall(
            before.function, before.grid, before.block, before.shared,
            (x, agreed, swapped, *others),
        )  # fmt: skip
        with pytest.raises(CompilerBug, match=r"op 'rank\.1/give' was planned as"):
            graph.read_back()
        node.call = before


def test_kernels_that_reach_over_need_peers() -> None:
    with pytest.raises(CudaError, match=r"peer_write from gpu0 to gpu1"):
        opened(rounds(ranks=2), peers="refused")


def test_a_guarded_kernel_does_nothing_once_its_unit_has_failed() -> None:
    with opened(rounds(ranks=2, units="device", **EXPLICIT)) as graph:
        driver, words = driver_of(graph), graph._session.words  # type: ignore[union-attr]
        graph.bind(values(graph, 1))
        graph.launch(entry="prepare")
        graph.launch()
        graph.synchronize()
        assert words is not None
        for unit in ("gpu0", "gpu1"):
            driver.word(words.failed(unit)).value = 1
        before = results(graph)
        graph.bind(values(graph, 2))
        graph.launch(entry="prepare")
        graph.launch()
        graph.synchronize()
        inbox = graph["rank.0/inbox"].numpy()
        assert np.array_equal(results(graph), before)
        graph.reset()
        graph.launch()
        graph.synchronize()
        assert not np.array_equal(graph["rank.0/inbox"].numpy(), inbox)
        assert not np.array_equal(results(graph), before)


# Entries.


@pytest.mark.parametrize(
    "division", [{}, {"units": "device"}, {"units": "device", "launch": "free"}]
)
def test_a_stale_preparation_is_told_with_its_rank(division: Any) -> None:
    with opened(rounds(**EXPLICIT, **division)) as graph:
        graph.bind(values(graph, 1))
        graph.launch()
        message = r"op 'rank\.\d/look': key 1 is not the one agreed on"
        with pytest.raises(UsageError, match=message) as caught:
            graph.synchronize()
        assert caught.value.__notes__  # the other ranks had something to say, too
        for rank in range(len(graph.program.rank_devices)):
            assert not graph[f"rank.{rank}/status"].numpy().any()
        graph.launch(entry="prepare")
        graph.synchronize()


def test_entries_are_told_and_looked_for() -> None:
    with opened(rounds(**EXPLICIT)) as graph:
        assert graph.entries == ("step", "prepare")
        with pytest.raises(UsageError, match="no entry 'prepaer': did you mean 'prepare'"):
            graph.launch(entry="prepaer")
        for wrong in (3, ["step"]):
            with pytest.raises(UsageError, match="no entry"):
                graph.launch(entry=wrong)  # type: ignore[arg-type]


def test_launches_of_several_entries_are_prepared_side_by_side() -> None:
    with opened(rounds(**EXPLICIT, units="device")) as graph:
        driver = driver_of(graph)
        graph.bind(values(graph, 1))
        for _ in range(2):
            graph.launch(entry="prepare")
            graph.launch()
        before = len(driver.calls)
        graph.launch(entry="prepare")
        graph.launch()
        names = [each[0] for each in driver.calls[before:]]
        assert names == 2 * ["record", "wait", "launch_graph", "launch_graph", "record", "wait"]
        graph.synchronize()


def test_a_binding_is_seen_by_every_entry() -> None:
    with opened(rounds(**EXPLICIT)) as graph:
        reference = ReferenceGraph(graph.plan)
        for seed in (1, 2):
            for each in (graph, reference):
                each.bind(values(each, seed))
                each.launch(entry="prepare")
                each.launch()
                each.synchronize()
            assert np.array_equal(results(graph), results(reference))


# The shipped layer over ranks.


@pytest.mark.parametrize(
    "values",
    [
        {"ranks": 3},
        {"ranks": 4, "gpus": 2, "units": "device", "launch": "free"},
        {"ranks": 4, "gpus": 2, "units": "device", "sync": "memops", "prepare": "explicit"},
        {"ranks": 4, "gpus": 4, "units": "rank", "launch": "free", "layout": "rank_major"},
        {"ranks": 8, "gpus": 2, "units": "device", "prepare": "explicit", "launch": "free"},
    ],
    ids=str,
)
def test_dispatch_and_combine_mean_what_the_reference_does(values: Any) -> None:
    spec = graphc.compile("ep_throughput", preset="small", cubins=False, arch="sm_90a", **values)
    plan = named_cubins(spec)
    reference = ReferenceGraph(plan)
    with opened(plan, gpus=8, seed=3) as graph:
        for seed in (1, 2):
            inputs = random_inputs(plan, seed=seed)
            for each in (graph, reference):
                each.bind({name: array.copy() for name, array in inputs.items()})
                for entry in reversed(each.entries):
                    each.launch(entry=entry)
                each.synchronize()
            for rank in range(values["ranks"]):
                tokens = int(inputs[f"rank.{rank}/tokens"][0])
                ours, wanted = (np.asarray(g[f"rank.{rank}/out"]) for g in (graph, reference))
                assert ours[:tokens].tobytes() == wanted[:tokens].tobytes()
        graph.read_back()
    assert not driver_of(graph).leaks()
