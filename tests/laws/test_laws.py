"""The laws of the compiler over random programs: 1, 3, 4 and 5, and what memory promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from damage import objections_to_damage
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    Machine,
    closure,
    commute,
    happens_before,
    has_race,
    hazard_pairs,
    interleaving,
    layout,
    ordered_pairs,
    real_bytes,
    topological,
)
from spmd import random_spmd_program, spmd_programs
from strategies import programs as single_programs
from strategies import random_program

from graphc.ir import Graph, Memory, Program, Schedule, Settings, Wait
from graphc.passes.assign_streams import assign_streams
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.insert_events import insert_events
from graphc.passes.plan_memory import plan_memory, separate
from graphc.text.diagnostics import CompilerBug
from graphc.verify import verify

PROGRAMS = st.one_of(single_programs(), spmd_programs())
SMALL = st.one_of(single_programs(max_steps=5), spmd_programs(max_steps=3))
STREAMS = st.integers(1, 4)
MEMORY = st.sampled_from(("concurrent", "tight"))
RANDOM_SCHEDULES = 1000  # whose every wait and edge is taken away in turn


def compiled(program: Program, memory: str, max_streams: int) -> tuple[Graph, Graph, Schedule]:
    """The graph as inferred, the graph with the orders of memory, and the schedule."""
    inferred = infer_dependencies(program)
    graph, layout_of = plan_memory(inferred, memory)
    placed = assign_streams(graph, max_streams)
    return inferred, graph, insert_events(placed, layout_of, Settings())


def position(program: Program) -> dict[str, int]:
    return {op.name: index for index, op in enumerate(program.ops)}


# Law 1


@given(PROGRAMS)
def test_the_closure_of_the_edges_is_the_closure_of_all_hazards(program: Program) -> None:
    graph = infer_dependencies(program)
    behind = closure([op.name for op in program], hazard_pairs(program))
    assert ordered_pairs(graph, program) == {
        (one, two) for one, others in behind.items() for two in others
    }


@given(PROGRAMS)
def test_program_order_is_an_order_of_the_edges(program: Program) -> None:
    graph = infer_dependencies(program)
    place = position(graph.program)
    assert set(graph.edges.nodes) == set(place)
    assert all(place[one] < place[two] for one, two in graph.edges.edges)
    assert all(hazards for _, _, hazards in graph.edges.edges(data="hazards"))


@given(PROGRAMS, st.integers(0, 12))
def test_bytes_that_meet_at_any_count_are_ordered(program: Program, count: int) -> None:
    in_use = None if program.capacity is None else min(count, program.capacity)
    ordered = ordered_pairs(infer_dependencies(program), program)
    slots = layout(program)
    for one, two in combinations(program.ops, 2):
        for first in one.accesses:
            for second in two.accesses:
                if commute(program, one, two, first, second):
                    continue
                here, there = slots[first.region.buffer], slots[second.region.buffer]
                ours = real_bytes(program, one, first, in_use)
                theirs = real_bytes(program, two, second, in_use)
                meet = (
                    here.allocation == there.allocation
                    and max(here.offset + ours[0], there.offset + theirs[0])
                    < min(here.offset + ours[1], there.offset + theirs[1])
                    and ours[0] < ours[1]
                    and theirs[0] < theirs[1]
                )
                if meet:
                    assert (one.name, two.name) in ordered


# Law 3


@given(PROGRAMS, MEMORY, STREAMS)
def test_every_finished_schedule_verifies(program: Program, memory: str, max_streams: int) -> None:
    _, _, schedule = compiled(program, memory, max_streams)
    verify(schedule)
    verify(schedule, order="edges")
    assert not schedule.program.ops or not has_race(schedule)


@given(PROGRAMS, MEMORY, STREAMS)
def test_streams_keep_the_edges_and_edges_keep_the_graph(
    program: Program, memory: str, max_streams: int
) -> None:
    _, graph, schedule = compiled(program, memory, max_streams)
    names = [op.name for op in graph.program]
    assert closure(names, schedule.edges) == closure(names, graph.edges.edges)
    behind = happens_before(schedule, replays=1)
    assert all(f"0:{two}" in behind[f"0:{one}"] for one, two in graph.edges.edges)


# Law 4


def objections(program: Program, memory: str, max_streams: int) -> int:
    return objections_to_damage(*compiled(program, memory, max_streams))


@given(PROGRAMS, MEMORY, STREAMS)
def test_no_wait_and_no_edge_can_go(program: Program, memory: str, max_streams: int) -> None:
    objections(program, memory, max_streams)


@pytest.mark.parametrize("part", range(4))
def test_no_wait_of_a_thousand_random_schedules_can_go(part: int) -> None:
    objected = 0
    for seed in range(part, RANDOM_SCHEDULES, 4):
        rng = Random(seed)
        objected += objections(
            random_program(rng, max_steps=rng.randint(1, 8)), "concurrent", rng.randint(1, 4)
        )
    assert objected > RANDOM_SCHEDULES


@pytest.mark.parametrize("part", range(2))
def test_no_wait_of_random_schedules_of_many_ranks_can_go(part: int) -> None:
    objected = 0
    for seed in range(part, RANDOM_SCHEDULES // 5, 2):
        rng = Random(seed)
        program = random_spmd_program(rng, max_steps=rng.randint(1, 5))
        objected += objections(program, "concurrent", rng.randint(1, 4))
    assert objected > RANDOM_SCHEDULES // 5


# The verifier against the oracle


@given(SMALL, STREAMS, st.integers(0, 2**32).map(Random))
def test_verify_and_the_oracle_agree_on_damaged_schedules(
    program: Program, max_streams: int, rng: Random
) -> None:
    _, _, schedule = compiled(program, "concurrent", max_streams)
    kept = tuple(
        each for each in schedule.instructions if not isinstance(each, Wait) or rng.random() < 0.7
    )
    damaged = replace(schedule, instructions=kept)
    if has_race(damaged):
        with pytest.raises(CompilerBug, match="race"):
            verify(damaged)
    else:
        verify(damaged)


# Law 5


@given(PROGRAMS, MEMORY, STREAMS, st.integers(0, 12), st.integers(0, 2**32).map(Random))
def test_any_legal_interleaving_leaves_the_bytes_of_program_order(
    program: Program, memory: str, max_streams: int, count: int, rng: Random
) -> None:
    in_use = program.capacity
    if in_use is not None and all(each.overlay is None for each in program.buffers.values()):
        in_use = min(count, in_use)
    _, _, schedule = compiled(program, memory, max_streams)
    alone = separate(program)
    reference = Machine(program, Memory(alone.allocations, alone.slots), in_use, poison=17)
    for op in program:
        reference.run(op)
    expected = reference.outcome()
    ops = {op.name: op for op in schedule.program}
    names = list(ops)
    for order in (
        interleaving(schedule, rng),
        interleaving(schedule, rng),
        topological(names, schedule.edges, rng),
    ):
        machine = Machine(program, schedule.memory, in_use, poison=221)
        for name in order:
            machine.run(ops[name])
        assert machine.outcome() == expected


# Memory


@given(PROGRAMS)
def test_concurrent_memory_adds_no_order_and_tight_counts_what_it_adds(program: Program) -> None:
    inferred = infer_dependencies(program)
    same, concurrent = plan_memory(inferred, "concurrent")
    assert same is inferred
    assert concurrent.added_orders == 0
    more, tight = plan_memory(inferred, "tight")
    added = more.edges.number_of_edges() - inferred.edges.number_of_edges()
    assert tight.added_orders == added
    assert set(inferred.edges.edges) <= set(more.edges.edges)
    total = {kind.nbytes for kind in tight.allocations}
    assert all(each.nbytes >= 0 for each in tight.allocations), total


@given(PROGRAMS, MEMORY)
def test_every_touched_buffer_lies_in_its_allocation(program: Program, memory: str) -> None:
    _, planned = plan_memory(infer_dependencies(program), memory)
    allocations = {each.name: each for each in planned.allocations}
    touched = {access.region.buffer for op in program for access in op.accesses}
    for name in touched | {
        name for name, each in program.buffers.items() if each.role != "scratch"
    }:
        buffer, slot = program.buffers[name], planned.slots[name]
        assert slot.offset + buffer.nbytes <= allocations[slot.allocation].nbytes
        assert allocations[slot.allocation].device == buffer.device
        assert buffer.overlay is not None or slot.offset % 256 == 0
