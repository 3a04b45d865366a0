"""Every shipped spec is compiled, verified, damaged and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from damage import objections_to_damage
from weakened import without_a_signal

import graphc
from graphc.backends.reference import ReferenceGraph
from graphc.inputs import random_inputs
from graphc.resources import shipped
from graphc.text.diagnostics import CompilerBug
from graphc.verify import verify
from graphc.verify.trace import Order

LAYERS = sorted(shipped("specs").glob("*.yaml"))
PEER = shipped("specs") / "moe_peer.yaml"
ROUTES = ("host", "host_copy", "host_push", "p2p", "p2p_read", "p2p_write", "local")
PRESETS = ("small", "full", "h2880", "h4096", "h7168")


def stages(path: Any, **values: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    graphc.check(path, observe=found.__setitem__, **values)
    return found


def test_there_is_a_layer() -> None:
    assert [each.stem for each in LAYERS] == ["ep_throughput", "moe_peer"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_proven(preset: str) -> None:
    proven = graphc.check(PEER, preset=preset)
    assert len(proven) == 5  # the routes that auto may take
    assert all(proof.pairs > proof.ops for _, proof in proven)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("route", ROUTES)
def test_no_wait_and_no_edge_of_the_peer_layer_can_go(route: str, early: bool) -> None:
    found = stages(PEER, preset="small", route=route, pieces=4, early=early, max_streams=3)
    graph, _ = found["plan_memory"]
    schedule = found["insert_events"]
    waits = sum(each.kind == "wait" for each in schedule.instructions)
    assert objections_to_damage(found["infer_dependencies"], graph, schedule) > waits


@pytest.mark.parametrize("launch", ["joined", "free"])
@pytest.mark.parametrize("pieces", [1, 4, 7])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("route", ROUTES)
def test_every_signal_of_the_divided_peer_layer_is_needed(
    route: str, early: bool, pieces: int, launch: str
) -> None:
    """What comes back orders the next launch: there are no handshakes."""
    values: dict[str, Any] = {"schedule.units": "device", "schedule.launch": launch}
    emit = "nodes" if early else "capture"
    found = stages(
        PEER, preset="small", route=route, pieces=pieces, early=early, emit=emit, **values
    )
    schedule, proof = found["insert_events"], found["verify"]
    assert (proof.units, proof.handshakes) == (2, 0)
    order: Order = "edges" if early else "streams"
    removed = 0
    for gone, less in without_a_signal([schedule]):
        with pytest.raises(CompilerBug, match="race"):
            verify(less, order=order)
        removed += 1
        assert not gone.is_handshake
    assert removed == proof.awaits >= 4


@pytest.mark.parametrize("path", LAYERS, ids=lambda path: path.stem)
def test_every_layer_runs(path: Any) -> None:
    plan = graphc.compile(path, preset="small", cubins=False)
    graph = ReferenceGraph(plan)
    inputs = random_inputs(plan, seed=1)
    graph.bind({name: value.copy() for name, value in inputs.items()})
    graph.poison()
    graph.launch()
    for name, used in {"residual": 37, "rank.0/out": 0, "rank.1/out": 0}.items():
        if name not in graph.program.buffers:
            continue
        used = used or int(inputs[name.replace("out", "tokens")][0])
        found = graph[name][:used]
        assert np.isfinite(found.astype(np.float32)).all()
        if name in inputs:
            assert (found != inputs[name]).mean() > 0.99
