"""Runs a case of dispatch and combine on a backend, and compares what it leaves with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
from expert_parallel_cases import Case, Inputs, replays, wanted
from expert_parallel_oracle import Expected
from numpy.typing import NDArray

import graphc
from graphc.plan import Plan
from graphc.resources import shipped

SPEC = shipped("specs") / "ep_throughput.yaml"


def compiled(case: Case, **values: Any) -> Plan:
    return graphc.compile(SPEC, cubins=False, **{**case.params, **values})


def run_case(case: Case, graph: Any, *, is_apart: bool = False) -> None:
    """All replays of a case; ``graph`` is of its plan, on any backend."""
    for replay in replays(case):
        graph.poison()
        graph.bind(named(replay.inputs, has_weights=case.meta))
        if replay.is_prepared:
            graph.launch(entry="prepare")
        before = [array(graph, rank, "out") for rank in range(case.ranks)]
        expected = wanted(case, replay.inputs)
        if is_apart:
            graph.launch(entry="dispatch")
            compare_rows(case, graph, expected)
            graph.launch(entry="expert")
            graph.launch(entry="combine")
        else:
            graph.launch(entry="step")
        graph.synchronize()
        compare_rows(case, graph, expected, has_payload=not case.shared_buffer)
        compare_out(case, graph, expected, before)


def named(inputs: Inputs, *, has_weights: bool = True) -> dict[str, NDArray[Any]]:
    """The arrays by the names of the buffers; without weights those stay unbound."""
    found: dict[str, NDArray[Any]] = {}
    for rank, number in enumerate(inputs.tokens):
        found[f"rank.{rank}/tokens"] = np.array([number], np.int32)
        found[f"rank.{rank}/x"] = inputs.x[rank]
        found[f"rank.{rank}/topk"] = inputs.ids[rank]
        if inputs.weights is not None and has_weights:
            found[f"rank.{rank}/topk_w"] = inputs.weights[rank]
    return found


def array(graph: Any, rank: int, name: str) -> NDArray[Any]:
    return np.array(graph[f"rank.{rank}/{name}"])


def compare_rows(
    case: Case, graph: Any, expected: list[Expected], *, has_payload: bool = True
) -> None:
    for rank, each in enumerate(expected):
        assert array(graph, rank, "received").tolist() == each.received, f"counts of rank {rank}"
        places = [*each.rows]
        if has_payload and places:
            received = array(graph, rank, "recv")[places]
            bits = received.view(f"u{received.dtype.itemsize}")
            same(bits, [each.payload[place] for place in places], f"rows of rank {rank}")
        if case.dtype == "fp8_e4m3" and places:
            scales = array(graph, rank, "recv_s")[places]
            same(scales, [each.scales[place] for place in places], f"scales of rank {rank}")
        if case.meta and places:
            ids = array(graph, rank, "recv_ids")[places]
            same(ids, [each.ids[place] for place in places], f"ids of rank {rank}")
            weights = array(graph, rank, "recv_w")[places]
            chosen = np.array([each.weights[place] for place in places], np.float32)
            same(weights, chosen, f"weights of rank {rank}")


def compare_out(
    case: Case, graph: Any, expected: list[Expected], before: list[NDArray[Any]]
) -> None:
    for rank, each in enumerate(expected):
        out, used = array(graph, rank, "out"), len(each.out)
        kept = before[rank][used:]
        assert out[used:].tobytes() == kept.tobytes(), f"rows of rank {rank} that are not in use"
        same(out[:used].view(np.uint16), np.array(each.out), f"results of rank {rank}")


def same(found: NDArray[Any], expected: Any, what: str) -> None:
    differ = np.argwhere(found != np.asarray(expected).reshape(found.shape))
    assert not len(differ), f"{what}: first at {differ[0]}, in {len(differ)} places"
