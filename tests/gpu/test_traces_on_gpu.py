"""When ops run on real GPUs: by events on one clock, and by CUPTI's records of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_plan import expected, small_plan

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.gpu.cupti import has_cupti
from graphc.gpu.probe import gpu_count
from graphc.ir import Emit
from graphc.simulation.orders import needed_ops

TOKENS = 1000
X = np.random.default_rng(1).standard_normal((TOKENS, 8), dtype=np.float32)
PLACES = [pytest.param([0, 0], id="one"), pytest.param([0, 1], id="two")]
WAYS = [
    "events",
    pytest.param("cupti", marks=pytest.mark.skipif(not has_cupti(), reason="no CUPTI")),
]


@pytest.fixture(params=PLACES)
def graph(request: pytest.FixtureRequest) -> Any:
    if max(request.param) >= gpu_count():
        pytest.skip("needs two GPUs")
    with CudaGraph(small_plan(tokens=TOKENS), devices=request.param) as made:
        made.bind(x=X)
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_every_op_has_its_times_and_waits_for_what_it_needs(graph: Any, way: str) -> None:
    found = graphc.trace(graph, rounds=5, by=way)
    assert found.missing == ()
    assert not found.replay.strays
    needed = needed_ops(graph.variant.schedule)
    for timeline in found.timelines:
        slices = {each.op: each for each in timeline.slices}
        assert {*slices} == {op.name for op in graph.program}
        assert all(each.duration_us > 0 for each in slices.values())
        for op, before in needed.items():
            for each in before:
                assert slices[each].start_us < slices[op].stop_us
    graph.launch()
    assert np.array_equal(graph["out"].numpy(), expected(X))


@pytest.mark.skipif(not has_cupti(), reason="no CUPTI")
@pytest.mark.parametrize("emit", [Emit.CAPTURE, Emit.NODES])
def test_traces_of_one_process_do_not_mix(emit: Emit) -> None:
    """CUPTI keeps names of kernels that were unloaded: records count all the same."""
    for pieces in (3, 1, 7):
        with CudaGraph(small_plan(tokens=TOKENS, pieces=pieces, emit=emit)) as graph:
            graph.bind(x=X)
            found = graphc.trace(graph, rounds=2, by="cupti", count=500)
            assert found.missing == ()
            assert len(found.ops) == 5 * pieces
