"""The peer layer on GPUs: every schedule leaves the bits of one piece, and means the reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from test_bits import LAUNCHES, PIECES, ROUTES, SPEC, TOKENS, peer_layer

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.backends.reference import ReferenceGraph
from graphc.gpu.probe import gpu_count
from graphc.inputs import random_inputs

EMITS = ("capture", "nodes", "streams")
TWO = gpu_count() > 1


@cache
def inputs(seed: int, is_skewed: bool) -> dict[str, np.ndarray[Any, Any]]:
    values = random_inputs(peer_layer("host", 1), seed=seed)
    for name, value in values.items():
        if is_skewed and name.endswith("w_route"):
            value *= np.linspace(0, 4, len(value))[:, None].astype(value.dtype)
    return values


def devices(route: str) -> list[int]:
    return [0, 1] if TWO and route != "local" else [0, 0]


def outputs(graph: CudaGraph, launch: int) -> bytes:
    seed, count, is_skewed = LAUNCHES[launch]
    graph.poison()
    graph.bind(inputs(seed, is_skewed))
    graph.launch(count=count)
    graph.synchronize()
    return np.asarray(graph["residual"])[:count].tobytes()


@cache
def baseline(launch: int) -> bytes:
    with CudaGraph(peer_layer("local", 1), devices=[0, 0]) as graph:
        return outputs(graph, launch)


def schedules() -> Iterator[tuple[str, Any, bool, str, int]]:
    """Every route, cut and emission, early and late; streams by turns."""
    turns = itertools.cycle((4, 1, 2))
    for route, pieces, early, emit in itertools.product(ROUTES, PIECES, (True, False), EMITS):
        yield route, pieces, early, emit, next(turns)


@pytest.mark.parametrize("route", ROUTES)
def test_no_schedule_changes_a_bit(route: str) -> None:
    tried = 0
    for name, pieces, early, emit, streams in schedules():
        if name != route:
            continue
        plan = peer_layer(route, pieces, early=early, emit=emit, max_streams=streams)
        with CudaGraph(plan, devices=devices(route)) as graph:
            if emit != "streams":
                graph.read_back()
            for launch in range(len(LAUNCHES)):
                what = (pieces, early, emit, streams, LAUNCHES[launch])
                assert outputs(graph, launch) == baseline(launch), what
        tried += 1
    assert tried == len(PIECES) * 2 * len(EMITS)


@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
def test_the_layer_means_its_reference(wire: str) -> None:
    """Kernel by kernel the tolerances are the contracts'; here their errors add up."""
    plan = peer_layer("host", 3, wire=wire, layers=1)
    seed, _, _ = LAUNCHES[0]
    values = random_inputs(plan, seed=seed)
    whole = ReferenceGraph(plan)
    whole.bind({name: value.copy() for name, value in values.items()})
    whole.launch()
    with CudaGraph(plan, devices=devices("host")) as graph:
        graph.bind(values)
        graph.launch()
        graph.synchronize()
        found = np.asarray(graph["residual"])
    wanted = whole["residual"]
    # A row differs by more than rounding only where two logits are so near that another expert won.
    near = np.isclose(found, wanted, rtol=2e-2, atol=2e-2).all(axis=1)
    assert near.mean() > 0.9, near


def test_counts_change_without_a_new_graph() -> None:
    with CudaGraph(peer_layer("host_copy", 8), devices=devices("host_copy")) as graph:
        values = inputs(1, False)
        expected = {}
        for count in (TOKENS, 5, 0, 1, 36, 17, TOKENS):
            graph.bind(values)
            graph.launch(count=count)
            graph.synchronize()
            bits = np.asarray(graph["residual"])[:count].tobytes()
            assert expected.setdefault(count, bits) == bits
        full = np.frombuffer(expected[TOKENS], np.float32).reshape(TOKENS, -1)
        # A token's row depends on no other token.
        for count, bits in expected.items():
            assert full[:count].tobytes() == bits


@pytest.mark.parametrize("preset", ["h2880", "h4096", "h7168"])
def test_other_real_shapes_keep_their_bits(preset: str) -> None:
    """The presets' rows and choices; fewer and narrower experts, so that inputs are made soon."""
    few = {"tokens": 512, "experts": 60, "peer_experts": 30, "ff": 128}
    found = set()
    for route, pieces in (("host", 1), ("host_copy", 8), ("p2p", 3)):
        plan = graphc.compile(SPEC, preset=preset, route=route, pieces=pieces, **few)
        with CudaGraph(plan, devices=devices(route)) as graph:
            graph.bind(random_inputs(plan, seed=1))
            graph.launch(count=500)
            graph.synchronize()
            found.add(np.asarray(graph["residual"])[:500].tobytes())
    assert len(found) == 1
