"""The laws of divided schedules over random programs of two to four units, one entry or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
from division import (
    FREE,
    JOINED,
    World,
    behind,
    holds,
    in_order,
    order_of,
    random_entries,
    random_settings,
    scheduled,
    weakened,
)
from oracles import ordered_pairs
from unit_oracles import Node, demands

from graphc.backends.interleaving import interleaving
from graphc.ir import Await, Division, Emit, Program, Schedule, Signal
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.text.diagnostics import SpecError
from graphc.verify import verify

CASES = 800
PARTS = 4


def cases(part: int, *, keeps_after: bool = True) -> Any:
    """Random programs with settings, and their schedules."""
    for seed in range(part, CASES, PARTS):
        rng = Random(seed)
        programs, settings = random_entries(rng, keeps_after=keeps_after), random_settings(rng)
        try:
            yield seed, programs, settings, scheduled(programs, settings)
        except SpecError:
            continue  # half of a program may read what its other half wrote


def orders(schedules: Sequence[Schedule]) -> list[list[Schedule]]:
    """All sequences of three launches."""
    return [list(each) for each in product(schedules, repeat=3)]


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_races_and_no_signal_can_go(part: int) -> None:
    """By all pairs over three launches, whatever is launched when: laws 3 and 4."""
    seen: Counter[bool] = Counter()
    for seed, _, _, schedules in cases(part, keeps_after=False):
        verify(schedules)
        wanted = [(names(turn), demands(turn)) for turn in orders(schedules)]

        def is_ordered(
            some: Sequence[Schedule], wanted: Sequence[tuple[list[str], Any]] = wanted
        ) -> bool:
            entries = {each.entry: each for each in some}
            return all(holds(order_of([entries[n] for n in turn]), pairs) for turn, pairs in wanted)

        assert is_ordered(schedules), seed
        before = {each.name: each for one in schedules for each in awaited(one)}
        for less in weakened(schedules):
            assert not is_ordered(less), seed
        for each in before.values():
            seen.update(one.is_handshake for one in each.work.signals)
    assert min(seen[True], seen[False]) > 80


def names(schedules: Sequence[Schedule]) -> list[str]:
    return [each.entry for each in schedules]


def awaited(schedule: Schedule) -> list[Any]:
    return [op for op in schedule.program if isinstance(op.work, Await)]


@pytest.mark.parametrize("part", range(PARTS))
def test_units_have_the_order_of_the_program_and_none_that_one_graph_has_not(part: int) -> None:
    for seed, programs, settings, schedules in cases(part):
        if settings.launch is not JOINED:
            continue
        one_graph = replace(settings, units=Division.ONE)
        whole = scheduled(programs, one_graph)
        for program, one, two in zip(programs, whole, schedules, strict=True):
            graph = infer_dependencies(program)
            found = ordered(two, {(0, op.name) for op in program})
            wanted = ordered_pairs(graph, program)
            assert found >= {((0, one), (0, two)) for one, two in wanted}, seed
            # Units share less memory, so that `tight` adds other orders.
            if settings.memory == "concurrent":
                assert found <= ordered(one, {(0, op.name) for op in program}), seed


def ordered(schedule: Schedule, names: set[Node]) -> set[tuple[Node, Node]]:
    before = order_of([schedule])
    nodes = list(before)
    return {
        (nodes[place], node)
        for node, known in behind(before).items()
        if node in names
        for place in bits(known)
        if nodes[place] in names
    }


def bits(known: int) -> list[int]:
    return [place for place in range(known.bit_length()) if known >> place & 1]


@pytest.mark.parametrize("part", range(PARTS))
def test_all_that_a_unit_does_for_a_signal_comes_before_it_awaits_the_signal(part: int) -> None:
    checked = 0
    for seed, _, _, schedules in cases(part):
        for schedule in schedules:
            unit_of = {name: unit.name for unit in schedule.units for name in unit.devices}
            units = {(0, op.name): unit_of[op.device] for op in schedule.program}
            units |= {(0, f"{end} {each.name}"): each.name for each in schedule.units
                      for end in ("begin", "end")}  # fmt: skip
            before = order_of([schedule])
            nodes = list(before)
            overall, within = behind(before), behind(inside(before, units))
            signals = {
                op.work.signal: (0, op.name)
                for op in schedule.program
                if isinstance(op.work, Signal)
            }
            for op in awaited(schedule):
                own = within[0, op.name]
                for each in op.work.signals:
                    if each.is_handshake:
                        continue
                    for place in bits(overall[signals[each.signal]]):
                        if units.get(nodes[place]) == unit_of[op.device]:
                            assert own >> place & 1, (seed, op.name, nodes[place])
                            checked += 1
    assert checked > 300


def inside(before: Mapping[Node, set[Node]], units: Mapping[Node, str]) -> dict[Node, set[Node]]:
    return {
        node: {other for other in nodes if units.get(other) == units.get(node)}
        for node, nodes in before.items()
    }


@pytest.mark.parametrize("part", range(PARTS))
def test_no_event_and_no_edge_leads_from_one_unit_to_another(part: int) -> None:
    for seed, _, _, schedules in cases(part):
        for schedule in schedules:
            unit_of = {name: unit.name for unit in schedule.units for name in unit.devices}
            devices = {op.name: op.device for op in schedule.program}
            for one, two in schedule.edges:
                assert unit_of[devices[one]] == unit_of[devices[two]], seed
            streams = {each.name: each.device for each in schedule.streams}
            recorded: dict[str, str] = {}
            for each in schedule.instructions:
                unit = unit_of[streams[each.stream]]
                if each.kind == "record":
                    recorded[each.event] = unit
                if each.kind == "wait":
                    assert recorded[each.event] == unit, seed


@pytest.mark.parametrize("part", range(PARTS))
def test_units_share_no_arena(part: int) -> None:
    for seed, programs, _, schedules in cases(part):
        for program, schedule in zip(programs, schedules, strict=True):
            unit_of = {name: unit.name for unit in schedule.units for name in unit.devices}
            units: dict[str, set[str]] = {}
            buffers: dict[str, set[str]] = {}
            for op in schedule.program:
                for access in op.accesses:
                    name = access.region.buffer
                    allocation = schedule.memory.slots[name].allocation
                    units.setdefault(allocation, set()).add(unit_of[op.device])
                    buffers.setdefault(allocation, set()).add(base(program, name))
            for allocation, some in units.items():
                assert len(some) == 1 or len(buffers[allocation]) == 1, seed


def base(program: Program, name: str) -> str:
    while (overlay := program.buffers[name].overlay) is not None:
        name = overlay[0]
    return name


# Law 5 over three launches


@pytest.mark.parametrize("part", range(PARTS))
def test_units_that_run_ahead_leave_the_bytes_of_program_order(part: int) -> None:
    ahead = 0
    for seed, programs, _, schedules in cases(part):
        rng = Random(seed)
        turn = [rng.choice(schedules) for _ in range(3)]
        count = programs[0].capacity
        expected = World(schedules, count, poison=17)
        for step in in_order(turn):
            expected.take(turn, step)
        for _ in range(2):
            world = World(schedules, count, poison=17)
            done: dict[str, int] = {}
            for step in interleaving(turn, rng.randrange(2**32)):
                world.take(turn, step)
                done[step.unit] = step.launch
                ahead += max(done.values()) > min(done.values())
            assert world.read == expected.read, seed
            assert (
                world.machines[turn[0].entry].outcome()
                == expected.machines[turn[0].entry].outcome()
            ), seed
    assert ahead > 500


def test_the_cases_are_of_all_kinds() -> None:
    seen: Counter[object] = Counter()
    for _, _, settings, schedules in cases(0):
        seen.update((settings.launch, settings.emit, len(schedules), len(schedules[0].units)))
    for kind in (FREE, JOINED, Emit.NODES, Emit.CAPTURE, 1, 2, 3, 4):
        assert seen[kind] > 10, kind
