"""Units that run ahead of each other leave the bits of launches one after the other.

Shipped layers with their kernels' references; the caller of each unit brings other inputs for each
launch, on that unit's own stream, and reads its outputs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import graphc
from graphc.backends.interleaving import Step
from graphc.backends.reference import ReferenceGraph
from graphc.inputs import random_inputs
from graphc.ir import Await, Role, Schedule
from graphc.plan import Plan

FILLED = (Role.INPUT, Role.INOUT, Role.WEIGHT)
FETCHED = (Role.OUTPUT, Role.INOUT)
ORDERS = 4


class Callers:
    """What the callers of all units bring and find."""

    def __init__(self, graph: ReferenceGraph, launches: int) -> None:
        self.graph = graph
        self.found: dict[tuple[int, str], bytes] = {}
        self.ahead = 0
        self.ended: dict[str, int] = {}
        self.buffers = {
            name: buffer
            for schedule in graph.variant.schedules.values()
            for name, buffer in schedule.program.buffers.items()
        }
        self.brought = [self.inputs(number) for number in range(launches)]
        # Memory for all of it: an optional buffer has none of its own.
        graph.bind({name: value.copy() for name, value in self.brought[0].items()})

    def inputs(self, seed: int) -> dict[str, Any]:
        """All but state, which is the caller's only while all units are idle."""
        every = random_inputs(self.graph.plan, seed=seed)
        return {name: value for name, value in every.items() if self.buffers[name].role in FILLED}

    def keep(self, routing: Sequence[int]) -> None:
        """Give each launch the tokens' ids of one of them."""
        kept = [
            {name: value for name, value in self.brought[other].items() if is_routing(name)}
            for other in routing
        ]
        for own, other in zip(self.brought, kept, strict=False):
            own |= other

    def __call__(self, step: Step) -> None:
        if step.moment == "before":
            for name, value in self.brought[step.launch].items():
                if self.buffers[name].device == step.unit:
                    self.graph[name][...] = value
            return
        self.ended[step.unit] = step.launch
        self.ahead = max(self.ahead, step.launch - min(self.ended.values()))
        for name, buffer in self.buffers.items():
            if buffer.role in FETCHED and buffer.device == step.unit:
                self.found[step.launch, name] = self.graph[name].tobytes()


def is_routing(name: str) -> bool:
    return name.endswith(("/topk", "/tokens"))


def in_order(graph: ReferenceGraph, callers: Callers, entries: Sequence[str]) -> None:
    units = [unit.name for unit in graph.variant.schedule.parts]
    for number, entry in enumerate(entries):
        for unit in units:
            callers(Step(number, unit, moment="before"))
        graph.launch(entry=entry)
        for unit in units:
            callers(Step(number, unit, moment="after"))


def check(
    plan: Plan, entries: Sequence[str], routing: Sequence[int] = ()
) -> Mapping[tuple[int, str], bytes]:
    """What the callers find, whatever the order; ``routing``: whose ids a launch is given."""
    found = []
    ahead = 0
    for seed in (None, *range(ORDERS)):
        graph = ReferenceGraph(plan)
        callers = Callers(graph, len(entries))
        callers.keep(routing)
        if seed is None:
            in_order(graph, callers, entries)
        else:
            graph.interleave(entries, seed=seed, caller=callers)
        graph.synchronize()
        found.append(callers.found)
        ahead = max(ahead, callers.ahead)
    assert all(each == found[0] for each in found)
    assert ahead > 0 or plan.variants[0].schedule.launch == "joined"
    return found[0]


@pytest.mark.parametrize("route", ["host", "p2p", "p2p_read"])
@pytest.mark.parametrize("emit", ["capture", "nodes"])
@pytest.mark.parametrize("launch", ["joined", "free"])
def test_the_peer_layer_in_two_units(route: str, emit: str, launch: str) -> None:
    values: dict[str, Any] = {"units": "device", "emit": emit, "launch": launch}
    plan = graphc.compile(
        "moe_peer", preset="small", cubins=False, route=route, pieces=3, layers=1, **values
    )
    check(plan, ("step",) * 3)


@pytest.mark.parametrize("shared_buffer", [False, True])
@pytest.mark.parametrize("ranks", [2, 5])
def test_dispatch_and_combine_a_unit_a_rank(ranks: int, shared_buffer: bool) -> None:
    plan = exchange(ranks, prepare="automatic", shared_buffer=shared_buffer, experts=10 * ranks)
    check(plan, ("step",) * 4)


@pytest.mark.parametrize("shared_buffer", [False, True])
def test_dispatch_and_combine_with_a_preparation_now_and_then(shared_buffer: bool) -> None:
    """Between preparations the routing stays as it is, and all else changes."""
    plan = exchange(3, prepare="explicit", shared_buffer=shared_buffer, experts=12)
    entries = ("prepare", "prepare", "step", "step", "prepare", "step")
    found = check(plan, entries, routing=(0, 1, 1, 1, 2, 2))
    outs = {tuple(found[number, f"rank.{rank}/out"] for rank in range(3)) for number in (2, 3, 5)}
    assert len(outs) == 3


def exchange(ranks: int, **values: Any) -> Plan:
    return graphc.compile(
        "ep_throughput",
        preset="small",
        cubins=False,
        ranks=ranks,
        gpus=ranks,
        units="rank",
        launch="free",
        **values,
    )


def test_without_its_handshakes_a_unit_overtakes_another() -> None:
    """The counts of the next preparation come before those of this one are read."""
    plan = exchange(3, prepare="explicit", experts=12)
    (variant,) = plan.variants
    others = {entry: without_handshakes(each) for entry, each in variant.others.items()}
    careless = replace(variant, schedule=without_handshakes(variant.schedule), others=others)
    with pytest.raises(AssertionError):
        check(replace(plan, variants=(careless,)), ("prepare",) * 8)
    check(plan, ("prepare",) * 8)


def without_handshakes(schedule: Schedule) -> Schedule:
    ops = []
    for op in schedule.program:
        if isinstance(op.work, Await):
            kept = tuple(each for each in op.work.signals if not each.is_handshake)
            ops.append(replace(op, work=Await(kept)))
        else:
            ops.append(op)
    return replace(schedule, program=replace(schedule.program, ops=tuple(ops)))
