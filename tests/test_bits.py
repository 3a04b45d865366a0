"""Every schedule of the peer layer leaves the same bits as the program in order in one piece.

Inputs are distinct in every element, scratch is poisoned and inputs and counts change between the
launches, and the order within a schedule is any that it allows.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphc
from graphc.backends.reference import ReferenceGraph
from graphc.inputs import random_inputs
from graphc.plan import Plan

SPEC = Path(__file__).parent.parent / "specs" / "moe_peer.yaml"
TOKENS = 37
ROUTES = ("host", "host_copy", "host_push", "p2p", "p2p_read", "p2p_write", "local")
UNEQUAL = ("1/16", "3/16", "1/2", "3/16", "1/16")
PIECES = (1, 2, 3, 8, 16, 64, TOKENS + 5, UNEQUAL)
LAUNCHES = ((1, TOKENS, False), (2, 23, True), (3, 0, False), (4, 1, True), (5, TOKENS, True))


def peer_layer(route: str, pieces: int | tuple[str, ...], **values: Any) -> Plan:
    if isinstance(pieces, tuple):
        cut = {
            f"schedule.{op}.pieces": list(pieces)
            for op in ("activations", "sums", "results", "add")
        }
        values |= {"pieces": 4, "schedule.cuts.compute": list(pieces), **cut}
    else:
        values |= {"pieces": pieces, "compute": pieces}
    return graphc.compile(SPEC, preset="small", cubins=False, route=route, **values)


def outputs(
    graph: ReferenceGraph, seed: int, count: int, *, is_skewed: bool, order: int | None
) -> dict[str, bytes]:
    """Bits of the rows in use after one launch with inputs of a seed."""
    graph.poison()
    for name, value in random_inputs(graph.plan, seed=seed).items():
        graph[name][...] = value
        if is_skewed and name.endswith("w_route"):
            graph[name][...] *= np.linspace(0, 4, len(value))[:, None].astype(value.dtype)
    graph.launch(count=count, seed=order)
    return {"residual": graph["residual"][:count].tobytes()}


@cache
def baseline(wire: str, launch: int) -> dict[str, bytes]:
    seed, count, is_skewed = LAUNCHES[launch]
    graph = ReferenceGraph(peer_layer("local", 1, wire=wire))
    return outputs(graph, seed, count, is_skewed=is_skewed, order=None)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    "pieces", PIECES, ids=lambda each: str(each) if isinstance(each, int) else "unequal"
)
@pytest.mark.parametrize("route", ROUTES)
def test_route_and_pieces_never_change_a_bit(
    route: str, pieces: int | tuple[str, ...], early: bool
) -> None:
    plans = [
        peer_layer(route, pieces, early=early, emit=emit, max_streams=streams)
        for emit, streams in (("capture", 4), ("capture", 1), ("nodes", 4))
    ]
    for number, plan in enumerate(plans):
        graph = ReferenceGraph(plan)
        for launch, (seed, count, is_skewed) in enumerate(LAUNCHES):
            if launch % len(plans) not in (number, 0):
                continue
            order = None if number == 0 and launch == 0 else 100 * number + launch
            found = outputs(graph, seed, count, is_skewed=is_skewed, order=order)
            assert found == baseline("f16", launch), (plan.name, order)


@pytest.mark.parametrize("wire", ["f32", "bf16"])
@pytest.mark.parametrize("route", ROUTES)
def test_the_wire_dtype_rounds_alike_on_every_route(route: str, wire: str) -> None:
    graph = ReferenceGraph(peer_layer(route, 3, wire=wire))
    for launch, (seed, count, is_skewed) in enumerate(LAUNCHES):
        found = outputs(graph, seed, count, is_skewed=is_skewed, order=launch)
        assert found == baseline(wire, launch)


def test_the_wire_dtype_matters() -> None:
    """Otherwise the test above could not fail."""
    assert len({baseline(wire, 0)["residual"] for wire in ("f16", "bf16", "f32")}) == 3


@pytest.mark.parametrize("memory", ["concurrent", "tight"])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_few_tokens_work(tokens: int, memory: str) -> None:
    few = ReferenceGraph(peer_layer("host", 8, tokens=tokens, memory=memory))
    one = ReferenceGraph(peer_layer("host", 1, tokens=tokens))
    for order in (None, 1, 2):
        a = outputs(few, 1, tokens, is_skewed=False, order=order)
        b = outputs(one, 1, tokens, is_skewed=False, order=None)
        assert a == b


@pytest.mark.parametrize("winner", [0, 1])
def test_all_rows_on_one_expert_work(winner: int) -> None:
    """Two experts, one on each device, and scores that always choose the same one."""
    found = set()
    for pieces in (1, 8):
        plan = peer_layer("host", pieces, experts=2, peer_experts=1, top_k=1, layers=1)
        graph = ReferenceGraph(plan)
        for name, value in random_inputs(plan, seed=3).items():
            graph[name][...] = value
        graph["residual"][...] = np.abs(graph["residual"])
        graph["layer.0/norm_w"][...] = np.abs(graph["layer.0/norm_w"])
        graph["layer.0/w_route"][...] = np.array([[winner == 0], [winner == 1]])
        before = graph["residual"].copy()
        graph.launch()
        assert (graph["residual"] != before).any(axis=1).all()
        found.add(graph["residual"].tobytes())
    assert len(found) == 1
