"""Where buffers lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_programs import small_program

from graphc.ir import MAPPED, Graph, Program
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.plan_memory import plan_memory

CHAIN = [
    {"name": "one", "at": "g0", "reads": ["x"], "writes": ["a"]},
    {"name": "two", "at": "g0", "reads": ["a"], "writes": ["b"]},
    {"name": "three", "at": "g0", "reads": ["b"], "writes": ["c"]},
    {"name": "four", "at": "g0", "reads": ["c"], "writes": ["x"]},
]
BUFFERS = {"x": "g0 inout", "a": "g0", "b": "g0", "c": "g0"}


def chain(**rows: int) -> Program:
    """The chain, with some buffers larger than what its ops touch."""
    program = small_program(BUFFERS, CHAIN)
    larger = {name: replace(program.buffers[name], shape=(n,)) for name, n in rows.items()}
    return replace(program, buffers={**program.buffers, **larger})


@pytest.mark.parametrize("memory", ["concurrent", "tight"])
@pytest.mark.parametrize("sizes", [{"a": 1000}, {"c": 1000}, {"a": 300, "b": 900, "c": 600}])
def test_a_slot_is_as_large_as_its_largest_buffer(memory: str, sizes: dict[str, int]) -> None:
    program = chain(**sizes)
    _, planned = plan_memory(infer_dependencies(program), memory)
    (arena,) = (each for each in planned.allocations if each.name == "g0/scratch")
    assert planned.slots["a"] == planned.slots["c"]
    ends = {name: planned.slots[name].offset + program.buffers[name].nbytes for name in "abc"}
    assert max(ends.values()) <= arena.nbytes
    first, second = sorted(("a", "b"), key=lambda name: planned.slots[name].offset)
    together = max(ends["a"], ends["c"]) if first == "a" else ends["b"]
    assert together <= planned.slots[second].offset


def test_what_others_overlay_shares_with_nobody_else() -> None:
    buffers = {**BUFFERS, "part": "g0 a@4"}
    _, planned = plan_memory(infer_dependencies(small_program(buffers, CHAIN)), "concurrent")
    a, part = planned.slots["a"], planned.slots["part"]
    assert planned.slots["c"] != a
    assert (part.allocation, part.offset) == (a.allocation, a.offset + 4)


def test_mapped_scratch_lies_by_the_devices_it_is_near_to() -> None:
    program = small_program({**BUFFERS, "a": MAPPED, "c": MAPPED}, CHAIN)
    near = {
        name: replace(each, near=("g0", "g1")) if name == "a" else each
        for name, each in program.buffers.items()
    }
    _, planned = plan_memory(infer_dependencies(replace(program, buffers=near)), "concurrent")
    arenas = {each.name: each.near for each in planned.allocations if each.device == MAPPED}
    assert arenas == {"host/scratch/g0/g1": ("g0", "g1"), "host/scratch": ()}


def test_a_buffer_with_a_role_is_there_even_if_nothing_touches_it() -> None:
    program = small_program({**BUFFERS, "idle": "g0 status", "none": "g0"}, CHAIN)
    _, planned = plan_memory(infer_dependencies(program), "concurrent")
    assert planned.slots["idle"].allocation == "idle"
    assert "none" not in planned.slots


def test_tight_goes_through_a_join_where_pieces_meet_pieces() -> None:
    buffers = {"x": "g0 inout", "y": "g0 output", "z": "g0 output", "a": "g0", "b": "g0"}
    ops = [
        {"name": "make_a", "at": "g0", "reads": ["x"], "writes": ["a"], "pieces": 4},
        {"name": "use_a", "at": "g0", "reads": ["a"], "writes": ["y"], "pieces": 4},
        {"name": "make_b", "at": "g0", "reads": ["x"], "writes": ["b"], "pieces": 4},
        {"name": "use_b", "at": "g0", "reads": ["b"], "writes": ["z"], "pieces": 4},
    ]
    inferred: Graph = infer_dependencies(small_program(buffers, ops))
    graph, planned = plan_memory(inferred, "tight")
    assert planned.slots["a"] == planned.slots["b"]
    assert planned.added_orders == 8
    assert "join/make_b/memory/b" in graph.edges
