"""Schedules that the passes divide, and such schedules with one order less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphc.ir import Await, Awaited, LaunchContract, Program, Schedule, Settings, Wait
from graphc.passes.assign_streams import assign_streams
from graphc.passes.divide import divide
from graphc.passes.find_handshakes import find_handshakes
from graphc.passes.find_units import find_units
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.insert_events import insert_events
from graphc.passes.plan_memory import plan_memory
from graphc.pipeline import share_arenas


def divided(programs: Sequence[Program], settings: Settings) -> list[Schedule]:
    """All entries, from pieces on as the pipeline makes them, and not yet proven."""
    parts, memories = [], []
    for program in programs:
        graph = infer_dependencies(program)
        units = find_units(graph.program, settings.units)
        graph, memory = plan_memory(graph, settings.memory, units)
        parts.append(divide(assign_streams(graph, settings.max_streams), units, settings))
        memories.append(memory)
    if len(programs) > 1:
        memories = share_arenas(memories)
    if settings.launch is LaunchContract.FREE:
        parts = find_handshakes(parts, memories, settings)
    return [insert_events(*each, settings) for each in zip(parts, memories, strict=True)]


def without_a_signal(schedules: Sequence[Schedule]) -> Iterator[tuple[Awaited, list[Schedule]]]:
    """Each signal that is awaited, and the schedules in which that await does not ask for it."""
    for schedule in schedules:
        for place, op in enumerate(schedule.program.ops):
            if not isinstance(op.work, Await):
                continue
            for gone in op.work.signals:
                rest = tuple(each for each in op.work.signals if each != gone)
                ops = list(schedule.program.ops)
                ops[place] = replace(op, work=Await(rest))
                less = replace(schedule, program=replace(schedule.program, ops=tuple(ops)))
                yield gone, [less if each is schedule else each for each in schedules]


def without_a_wait(schedules: Sequence[Schedule]) -> Iterator[list[Schedule]]:
    for schedule in schedules:
        for index, each in enumerate(schedule.instructions):
            if isinstance(each, Wait):
                rest = schedule.instructions[:index] + schedule.instructions[index + 1 :]
                less = replace(schedule, instructions=rest)
                yield [less if one is schedule else one for one in schedules]


def without_an_edge(schedules: Sequence[Schedule]) -> Iterator[list[Schedule]]:
    for schedule in schedules:
        for edge in schedule.edges:
            rest = tuple(each for each in schedule.edges if each != edge)
            less = replace(schedule, edges=rest)
            yield [less if one is schedule else one for one in schedules]
