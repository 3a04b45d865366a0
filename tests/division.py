"""Programs divided by the passes, and what is then before what, slow and plain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from oracles import Machine
from spmd import random_spmd_program
from strategies import random_program
from unit_oracles import Node, callers, event_graph, heard

from graphc.backends.interleaving import Step
from graphc.ir import (
    Await,
    Division,
    Emit,
    LaunchContract,
    Memory,
    Op,
    Placed,
    Program,
    Role,
    Schedule,
    Settings,
)
from graphc.passes.assign_streams import assign_streams
from graphc.passes.divide import divide
from graphc.passes.find_handshakes import find_handshakes
from graphc.passes.find_units import find_units
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.insert_events import insert_events
from graphc.passes.plan_memory import plan_memory
from graphc.pipeline import share_arenas

DEVICES = ("g0", "g1", "g2", "g3")
FREE, JOINED = LaunchContract.FREE, LaunchContract.JOINED


def scheduled(programs: Sequence[Program], settings: Settings) -> list[Schedule]:
    """What the pipeline makes of programs in pieces."""
    placed, memories = laid(programs, settings)
    return [insert_events(*each, settings) for each in zip(placed, memories, strict=True)]


def laid(
    programs: Sequence[Program], settings: Settings
) -> tuple[Sequence[Placed], Sequence[Memory]]:
    divided, memories = [], []
    for program in programs:
        graph = infer_dependencies(program)
        units = find_units(program, settings.units)
        graph, memory = plan_memory(graph, settings.memory, units)
        placed = assign_streams(graph, settings.max_streams)
        divided.append(divide(placed, units, settings))
        memories.append(memory)
    memories = share_arenas(memories)
    if settings.launch is FREE:
        return find_handshakes(divided, memories, settings), memories
    return divided, memories


def random_settings(rng: Random) -> Settings:
    return Settings(
        emit=rng.choice((Emit.CAPTURE, Emit.CAPTURE, Emit.NODES)),
        memory=rng.choice(("concurrent", "tight")),
        max_streams=rng.randint(1, 4),
        units=Division.DEVICE,
        launch=rng.choice((FREE, FREE, JOINED)),
    )


def random_entries(rng: Random, *, keeps_after: bool = True, max_steps: int = 7) -> list[Program]:
    """A program on two to four devices, or two programs with some of its ops each."""
    steps = rng.randint(1, max_steps)
    if rng.random() < 0.3:
        program = random_spmd_program(rng, max_steps=steps, gpus=rng.randint(2, 4))
    else:
        program = random_program(rng, max_steps=steps, devices=DEVICES[: rng.randint(2, 4)])
    if not keeps_after:
        ops = (replace(op, placement=replace(op.placement, after=())) for op in program)
        program = replace(program, ops=tuple(ops))
    if rng.random() < 0.6:
        return [program]
    halves = ([op for op in program if rng.random() < 0.7] for _ in range(2))
    return [
        replace(program, ops=tuple(ops), entry=entry)
        for ops, entry in zip(halves, ("step", "prepare"), strict=True)
    ]


# What is before what


def order_of(launches: Sequence[Schedule]) -> Mapping[Node, set[Node]]:
    """Every node and those right before it, as the schedules are emitted."""
    if launches[0].emit is Emit.NODES:
        return edge_graph(launches)
    return event_graph(launches)


def edge_graph(launches: Sequence[Schedule]) -> dict[Node, set[Node]]:
    before: dict[Node, set[Node]] = {}
    for turn, schedule in enumerate(launches):
        names = [unit for unit, _ in callers(schedule)]
        caller = {
            device: unit.name if unit.name in names else ""
            for unit in schedule.parts
            for device in unit.devices
        }
        for name in names:
            before[turn, f"begin {name}"] = {(turn - 1, f"end {name}")} if turn else set()
        led: dict[str, set[Node]] = {}
        for one, two in schedule.edges:
            led.setdefault(two, set()).add((turn, one))
        for op in schedule.program:
            own = led.get(op.name) or {(turn, f"begin {caller[op.device]}")}
            before[turn, op.name] = own | set(heard(launches, turn, op))
        for name in names:
            ends = {(turn, op.name) for op in schedule.program if caller[op.device] == name}
            before[turn, f"end {name}"] = ends | {(turn, f"begin {name}")}
    return before


def behind(before: Mapping[Node, set[Node]]) -> dict[Node, int]:
    """Each node and the set of all before it, as bits in the order given."""
    reach: dict[Node, int] = {}
    place = {node: index for index, node in enumerate(before)}
    for node, nodes in before.items():
        known = 0
        for other in nodes:
            known |= reach[other] | 1 << place[other]
        reach[node] = known
    return reach


def holds(before: Mapping[Node, set[Node]], pairs: Sequence[tuple[Node, Node]]) -> bool:
    place = {node: index for index, node in enumerate(before)}
    reach = behind(before)
    return all(reach[two] >> place[one] & 1 for one, two in pairs)


def weakened(schedules: Sequence[Schedule]) -> Iterator[list[Schedule]]:
    """The schedules without one awaited signal, each in turn."""
    for schedule in schedules:
        for op in schedule.program:
            for gone in op.work.signals if isinstance(op.work, Await) else ():
                less = without(schedule, op, gone)
                yield [less if each is schedule else each for each in schedules]


def without(schedule: Schedule, op: Op, gone: object) -> Schedule:
    assert isinstance(op.work, Await)
    rest = Await(tuple(each for each in op.work.signals if each != gone))
    ops = tuple(replace(each, work=rest) if each is op else each for each in schedule.program)
    return replace(schedule, program=replace(schedule.program, ops=ops))


# Launches one after the other, with a caller who brings other inputs for each

FILLED = (Role.INPUT, Role.INOUT, Role.WEIGHT)
FETCHED = (Role.OUTPUT, Role.INOUT)


def in_order(launches: Sequence[Schedule]) -> list[Step]:
    """Each launch in the order of its program."""
    steps = []
    for number, schedule in enumerate(launches):
        units = [each.name for each in schedule.parts]
        steps += [Step(number, unit, moment="before") for unit in units]
        steps += [Step(number, "", op) for op in schedule.program]
        steps += [Step(number, unit, moment="after") for unit in units]
    return steps


class World:
    """The machine with the caller, who brings other inputs for every launch."""

    def __init__(self, schedules: Sequence[Schedule], count: int | None, poison: int) -> None:
        self.machines: dict[str, Machine] = {}
        arrays: dict[str, Any] = {}
        for each in reversed(schedules):
            machine = Machine(each.program, each.memory, count, poison)
            arrays |= machine.arrays
            machine.arrays = arrays
            self.machines[each.entry] = machine
        self.begun: set[tuple[int, str]] = set()
        self.read: dict[tuple[int, str], bytes] = {}

    def take(self, launches: Sequence[Schedule], step: Step) -> None:
        schedule = launches[step.launch]
        machine = self.machines[schedule.entry]
        if step.op is not None:
            machine.run(step.op)
            return
        for name, buffer in schedule.program.buffers.items():
            # Mapped memory is the caller's only while all units are idle.
            if name not in machine.slots or step.unit not in (buffer.device, "all"):
                continue
            if step.moment == "before" and buffer.role in FILLED:
                seed = step.launch * 1000 + sum(map(ord, name))
                machine.view(name)[:] = np.random.default_rng(seed).integers(
                    0, 256, buffer.nbytes, np.uint8
                )
            if step.moment == "after" and buffer.role in FETCHED:
                self.read[step.launch, name] = machine.view(name).tobytes()
