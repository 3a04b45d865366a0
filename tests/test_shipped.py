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
from graphc.ir import Await, Awaited, Schedule
from graphc.plan import Proof
from graphc.resources import shipped
from graphc.text.diagnostics import CompilerBug
from graphc.verify import verify
from graphc.verify.trace import Order

LAYERS = sorted(shipped("specs").glob("*.yaml"))
PEER = shipped("specs") / "moe_peer.yaml"
EXPERTS = shipped("specs") / "ep_throughput.yaml"
ROUTES = ("host", "host_copy", "host_push", "p2p", "p2p_read", "p2p_write", "local")
PRESETS = ("small", "full", "h2880", "h4096", "h7168")


def stages(path: Any, **values: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    graphc.check(path, observe=found.__setitem__, **values)
    return found


def test_there_is_a_layer() -> None:
    assert [each.stem for each in LAYERS] == ["ep_throughput", "moe_ep", "moe_peer"]


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


def ranks_apart(ranks: int, launch: str, **values: Any) -> tuple[list[Schedule], Proof]:
    """All entries of dispatch and combine, a unit a rank, and what was proven."""
    schedules: list[Schedule] = []
    proofs: list[Proof] = []

    def note(name: str, stage: Any) -> None:
        if name in ("insert_events", "verify"):
            (schedules if name == "insert_events" else proofs).append(stage)

    values |= {"ranks": ranks, "gpus": ranks, "units": "rank", "launch": launch}
    graphc.check(EXPERTS, preset="small", observe=note, **values)
    (proof,) = proofs
    return schedules, proof


@pytest.mark.parametrize("launch", ["joined", "free"])
@pytest.mark.parametrize("layout", ["token_major", "rank_major"])
@pytest.mark.parametrize("prepare", ["automatic", "explicit"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_dispatch_and_combine_have_the_barriers_and_handshakes_worked_out_by_hand(
    ranks: int, shared: bool, prepare: str, layout: str, launch: str
) -> None:
    """Three barriers; handshakes where two launches of one entry would meet in a buffer.

    Those of explicit preparation: exchange after scan, and, of a shared buffer, dispatch after
    combine. No signal is spare.
    """
    values = {"prepare": prepare, "layout": layout, "shared_buffer": shared}
    schedules, proof = ranks_apart(ranks, launch, **values)
    pairs = ranks * (ranks - 1)
    shaken = (1 + shared) if (launch, prepare) == ("free", "explicit") else 0
    assert (proof.units, proof.awaits, proof.handshakes) == (ranks, 3 * pairs, shaken * pairs)
    assert {each.entry for each in handshakes(schedules)} == (
        set() if not shaken else {"prepare", "step"} if shared else {"prepare"}
    )
    for _, less in without_a_signal(schedules):
        with pytest.raises(CompilerBug, match="race"):
            verify(less)


def handshakes(schedules: list[Schedule]) -> list[Awaited]:
    works = (op.work for each in schedules for op in each.program)
    every = (one for each in works if isinstance(each, Await) for one in each.signals)
    return [each for each in every if each.is_handshake]


@pytest.mark.parametrize("prepare", ["automatic", "explicit"])
def test_no_signal_of_entries_that_go_by_themselves_is_spare(prepare: str) -> None:
    """Between dispatch, experts and combine there is nothing but handshakes."""
    schedules, proof = ranks_apart(3, "free", prepare=prepare, apart=True)
    assert proof.handshakes == sum(1 for _ in handshakes(schedules)) > 12
    for _, less in without_a_signal(schedules):
        with pytest.raises(CompilerBug, match="race"):
            verify(less)


def test_sixty_four_ranks_are_proven() -> None:
    _, proof = ranks_apart(64, "free", prepare="explicit")
    assert (proof.awaits, proof.handshakes) == (3 * 64 * 63, 64 * 63)


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
