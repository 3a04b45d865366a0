"""Shapes of programs as data, and each law as one function over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from small_programs import small_program

from graphc.ir import Program, Record, Schedule, Settings, Wait
from graphc.passes.assign_streams import assign_streams
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.insert_events import insert_events
from graphc.passes.plan_memory import plan_memory
from graphc.text.diagnostics import SpecError
from graphc.verify import verify


@dataclass(frozen=True, slots=True)
class Shape:
    """Ops as ``name: reads -> writes``, what they are ordered by, and what that costs."""

    name: str
    ops: tuple[str, ...]
    edges: tuple[str, ...]
    streams: int
    waits: int


SHAPES = (
    Shape("empty", (), (), 1, 0),
    Shape("single", ("p: x -> x",), (), 1, 0),
    Shape("chain", ("p: x -> a", "q: a -> b", "r: b -> x"), ("pq", "pr", "qr"), 1, 0),
    Shape("fan_out", ("p: x -> a", "q: a -> b", "r: a -> c"), ("pq", "pr"), 2, 2),
    Shape("fan_in", ("p: x -> a", "q: x -> b", "r: ab -> c"), ("pr", "qr"), 2, 2),
    Shape(
        "diamond",
        ("p: x -> a", "q: a -> b", "r: a -> c", "s: bc -> d"),
        ("pq", "pr", "qs", "rs"),
        2,
        2,
    ),
    Shape("disconnected", ("p: x -> a", "q: x -> b"), (), 2, 2),
    Shape("self_update", ("p: x -> x", "q: x -> x"), ("pq",), 1, 0),
    Shape("two_readers", ("p: x -> ", "q: x -> ", "r: y -> x"), ("pr", "qr"), 2, 2),
)
SHAPED = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def program_of(shape: Shape) -> Program:
    ops: list[Mapping[str, Any]] = []
    for text in shape.ops:
        name, arguments = text.split(": ")
        reads, writes = arguments.split(" -> ")
        ops.append({"name": name, "at": "g0", "reads": [*reads], "writes": [*writes]})
    names = sorted({name for op in ops for name in (*op["reads"], *op["writes"])})
    roles = {name: "g0 state" if name in "xy" else "g0" for name in names}
    return small_program(roles, ops)


def schedule_of(shape: Shape, max_streams: int = 4) -> Schedule:
    graph, memory = plan_memory(infer_dependencies(program_of(shape)), "concurrent")
    return insert_events(assign_streams(graph, max_streams), memory, Settings())


@SHAPED
def test_the_edges_are_those_expected(shape: Shape) -> None:
    edges = infer_dependencies(program_of(shape)).edges.edges
    assert sorted(one + two for one, two in edges) == sorted(shape.edges)


@SHAPED
@pytest.mark.parametrize("max_streams", [1, 2, 3, 4])
def test_it_verifies_on_any_number_of_streams(shape: Shape, max_streams: int) -> None:
    schedule = schedule_of(shape, max_streams)
    verify(schedule)
    verify(schedule, order="edges")


@SHAPED
def test_it_takes_no_more_streams_and_waits_than_needed(shape: Shape) -> None:
    schedule = schedule_of(shape)
    assert len(schedule.streams) == shape.streams
    assert sum(isinstance(each, Wait) for each in schedule.instructions) == shape.waits
    records = [each.event for each in schedule.instructions if isinstance(each, Record)]
    waited = {each.event for each in schedule.instructions if isinstance(each, Wait)}
    assert sorted(records) == sorted(waited), "every event is waited for, and recorded once"


def test_a_stream_belongs_to_one_device() -> None:
    ops = [
        {"name": name, "at": device, "reads": ["x"], "stream": "mine"}
        for name, device in (("p", "g0"), ("q", "g1"))
    ]
    graph = infer_dependencies(small_program({"x": "g0 input"}, ops))
    with pytest.raises(SpecError, match="stream 'mine' belongs to 'g0', but 'q' runs on 'g1'"):
        assign_streams(graph, 4)
