"""Law 4: take away every wait and every edge of a schedule in turn, and see the proof fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphc.ir import Graph, Hazard, Schedule, Wait
from graphc.text.diagnostics import CompilerBug
from graphc.verify import verify


def is_spare(inferred: Graph, one: str, two: str) -> bool:
    """Orders that no access asks for: of `after`, of joins, and those that `tight` added."""
    return not inferred.edges.has_edge(one, two) or inferred.edges.edges[one, two]["hazards"] == (
        Hazard.AFTER,
    )


def objections_to_damage(inferred: Graph, graph: Graph, schedule: Schedule) -> int:
    """How often ``verify`` objected: it must, but for spare orders, whatever is taken away."""
    assert len(set(schedule.instructions)) == len(schedule.instructions), "one is there twice"
    return damaged_waits(inferred, graph, schedule) + damaged_edges(inferred, schedule)


def damaged_waits(inferred: Graph, graph: Graph, schedule: Schedule) -> int:
    objected = 0
    for index, each in enumerate(schedule.instructions):
        if not isinstance(each, Wait):
            continue
        following = (one for one in schedule.instructions[index + 1 :] if one.kind != "wait")
        op = next((one.op for one in following if one.kind == "run"), None)
        if op and graph.edges.has_edge(each.event, op) and is_spare(inferred, each.event, op):
            continue
        rest = schedule.instructions[:index] + schedule.instructions[index + 1 :]
        with pytest.raises(CompilerBug, match="race"):
            verify(replace(schedule, instructions=rest))
        objected += 1
    return objected


def damaged_edges(inferred: Graph, schedule: Schedule) -> int:
    objected = 0
    for edge in schedule.edges:
        if is_spare(inferred, *edge):
            continue
        rest = tuple(each for each in schedule.edges if each != edge)
        with pytest.raises(CompilerBug, match="race"):
            verify(replace(schedule, edges=rest), order="edges")
        objected += 1
    return objected
