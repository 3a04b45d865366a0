"""The laws of divided schedules, against all pairs over three launches of all entries.

The proof is held to schedules that are divided at random, with too few signals or enough, and not
by any pass; the passes, to the proof and to all pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from typing import TypeAlias

import pytest
from spmd import random_spmd_program
from strategies import random_program
from unit_oracles import Oracle
from weakened import divided, without_a_signal, without_a_wait, without_an_edge

from graphc.ir import (
    Await,
    Awaited,
    Begin,
    Division,
    Emit,
    Instruction,
    LaunchContract,
    Op,
    Program,
    Record,
    Run,
    Schedule,
    Settings,
    Signal,
    Stream,
    Unit,
    Wait,
)
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.plan_memory import separate
from graphc.text.diagnostics import CompilerBug, SpecError
from graphc.verify import verify
from graphc.verify.trace import Order

CASES = 400
CONTRACTS = (LaunchContract.FREE, LaunchContract.FREE, LaunchContract.JOINED)
DEVICES = ("g0", "g1", "g2", "g3")
Told: TypeAlias = tuple[str, str, str, bool]  # signal, unit, entry, is_handshake


class Divider:
    """One entry of a random program, divided at random."""

    def __init__(self, program: Program, launch: LaunchContract, rng: Random, care: float) -> None:
        graph = infer_dependencies(program)
        self.program, self.edges, self.launch = graph.program, graph.edges, launch
        self.rng, self.care = rng, care
        self.units = tuple(Unit(each, (each,), f"{each}.0") for each in program.devices)
        self.ops: list[Op] = []
        self.instructions: list[Instruction] = []
        self.streams: dict[str, str] = {}
        self.told: list[tuple[str, str]] = []  # signals of this entry at its ends, and their units
        self.number = 0

    def lucky(self) -> bool:
        return self.rng.random() < self.care

    def run(self, op: Op, stream: str) -> None:
        self.ops.append(op)
        self.streams[op.name] = stream
        self.instructions.append(Run(stream, op.name))

    def wait(self, one: str, stream: str) -> None:
        """The stream waits for an op of its unit."""
        if self.streams[one] != stream:
            event = f"{one}@{len(self.instructions)}"
            at = self.instructions.index(Run(self.streams[one], one)) + 1
            self.instructions.insert(at, Record(self.streams[one], event))
            self.instructions.append(Wait(stream, event))

    def signal(self, device: str, stream: str) -> str:
        """A signal to all other units of what the stream has seen; its name."""
        self.number += 1
        name = f"{self.program.entry}/{device}.{self.number}"
        to = tuple(each.name for each in self.units if each.name != device)
        self.run(Op(f"signal/{name}", f"signal/{name}", device, Signal(name, to), ()), stream)
        return name

    def hear(self, device: str, stream: str, signals: Sequence[Told]) -> None:
        self.number += 1
        name = f"await/{self.program.entry}/{device}.{self.number}"
        awaited = tuple(Awaited(*each) for each in signals)
        if awaited:
            self.run(Op(name, name, device, Await(awaited), ()), stream)

    def begin(self, handshakes: Sequence[Told], *, is_tight: bool) -> None:
        entry = self.program.entry
        first = []
        for device in self.program.devices:
            name = f"{device}/begin"
            self.run(Op(name, name, device, Begin(), ()), f"{device}.0")
            if is_tight:
                first.append((self.signal(device, f"{device}.0"), device, entry, False))
        for device in self.program.devices:
            others = [each for each in (*first, *handshakes) if each[1] != device and self.lucky()]
            self.hear(device, f"{device}.0", others)
            for number in (1, 2):
                self.instructions.append(Record(f"{device}.0", f"{device}.fork{number}"))
                self.instructions.append(Wait(f"{device}.{number}", f"{device}.fork{number}"))

    def body(self) -> None:
        signals: dict[str, str] = {}
        devices = {op.name: op.device for op in self.program.ops}
        entry = self.program.entry
        for op in self.program.ops:
            stream = f"{op.device}.{self.rng.randrange(3)}"
            before = [each for each in self.edges.pred[op.name] if self.lucky()]
            for one in before:
                if devices[one] == op.device:
                    self.wait(one, stream)
            others = [
                (signals[one], devices[one], entry, False)
                for one in before
                if devices[one] != op.device
            ]
            self.hear(op.device, stream, others)
            self.run(op, stream)
            if any(devices[two] != op.device for two in self.edges.succ[op.name]):
                signals[op.name] = self.signal(op.device, stream)

    def end(self, *, is_tight: bool) -> None:
        entry = self.program.entry
        for device in self.program.devices:
            for number in (1, 2):
                event = f"{device}.join{number}"
                self.instructions += [
                    Record(f"{device}.{number}", event),
                    Wait(f"{device}.0", event),
                ]
            self.told.append((self.signal(device, f"{device}.0"), device))
        for device in self.program.devices if is_tight else ():
            last = [(name, unit, entry, False) for name, unit in self.told if unit != device]
            self.hear(device, f"{device}.0", [each for each in last if self.lucky()])

    def schedule(self) -> Schedule:
        streams = tuple(
            Stream(f"{each}.{n}", each) for each in self.program.devices for n in range(3)
        )
        program = replace(self.program, ops=tuple(self.ops))
        return Schedule(
            program, streams, self.units[0].origin, tuple(self.instructions), (),
            separate(program), units=self.units, launch=self.launch,
        )  # fmt: skip


def random_programs(rng: Random) -> list[Program]:
    """One or two entries of a random program, of ranks or not, on two to four devices."""
    gpus, steps = rng.randint(2, 4), rng.randint(1, 5)
    if rng.random() < 0.3:
        program = random_spmd_program(rng, max_steps=min(steps, 3), gpus=gpus)
    else:
        program = random_program(rng, max_steps=steps, devices=DEVICES[:gpus])
    program = replace(program, ops=tuple(without_after(op) for op in program))
    if rng.random() < 0.6:
        return [program]
    halves = [[op for op in program if rng.random() < 0.7] for _ in range(2)]
    return [
        replace(program, ops=tuple(ops), entry=name)
        for ops, name in zip(halves, ("step", "prepare"), strict=True)
    ]


def random_entries(rng: Random) -> list[Schedule]:
    """The entries of a random program, divided at random."""
    parts = random_programs(rng)
    launch = rng.choice(CONTRACTS)
    care = rng.choice((1.0, 1.0, 0.9))
    is_tight = rng.random() < 0.6
    has_handshakes = rng.random() < 0.6
    dividers = [Divider(each, launch, rng, care) for each in parts]
    # The signals at the end have names before they are made: what follows the number of the last.
    schedules: list[Schedule] = []
    for each in dividers:
        each.begin([], is_tight=is_tight)
        each.body()
        each.end(is_tight=is_tight)
    told = [
        (signal, unit, each.program.entry, True) for each in dividers for signal, unit in each.told
    ]
    for each in dividers:
        schedule = each.schedule()
        schedules.append(with_handshakes(schedule, told, rng) if has_handshakes else schedule)
    return schedules


def without_after(op: Op) -> Op:
    return replace(op, placement=replace(op.placement, after=()))


def with_handshakes(schedule: Schedule, told: Sequence[Told], rng: Random) -> Schedule:
    """Before some op of each unit, wait for what others signalled at the end of a launch before."""
    instructions = list(schedule.instructions)
    ops = list(schedule.program.ops)
    for unit in schedule.units:
        name = f"await/{unit.name}.previous"
        awaited = tuple(
            Awaited(*each) for each in told if each[1] != unit.name and rng.random() < 0.9
        )
        runs = [
            index
            for index, each in enumerate(instructions)
            if isinstance(each, Run) and each.stream.startswith(f"{unit.name}.")
        ]
        at = (
            runs[1]
            if rng.random() < 0.7 and len(runs) > 1
            else rng.choice([*runs[1:], runs[0] + 1])
        )
        ops.append(Op(name, name, unit.name, Await(awaited), ()))
        instructions.insert(at, Run(f"{unit.name}.0", name))
    program = replace(schedule.program, ops=tuple(ops))
    return replace(schedule, program=program, instructions=tuple(instructions))


def objects(schedules: Sequence[Schedule], order: Order = "streams") -> bool:
    try:
        verify(schedules, order=order)
    except CompilerBug as bug:
        found = bug.message
    else:
        return False
    assert "race" in found, found
    return True


@pytest.mark.parametrize("part", range(4))
def test_the_proof_and_all_pairs_over_three_launches_agree(part: int) -> None:
    verdicts: Counter[tuple[bool, bool]] = Counter()
    for seed in range(part, CASES, 4):
        rng = Random(seed)
        try:
            schedules = random_entries(rng)
        except SpecError:
            continue  # a part of a program may read what only the rest would have written
        oracle = Oracle(schedules)
        is_racy = oracle.has_race(schedules)
        assert objects(schedules) == is_racy, seed
        verdicts[len(schedules) > 1, is_racy] += 1
        if not is_racy:
            for _, less in islice(without_a_signal(schedules), 12):
                is_racy = oracle.has_race(less)
                assert objects(less) == is_racy, seed
                verdicts[len(schedules) > 1, is_racy] += 1
    assert len(verdicts) == 4
    assert min(verdicts.values()) > CASES // 100


def random_settings(rng: Random) -> Settings:
    return Settings(
        emit=rng.choice((Emit.CAPTURE, Emit.NODES)),
        max_streams=rng.randint(1, 4),
        units=Division.DEVICE,
        launch=rng.choice(CONTRACTS),
    )


@pytest.mark.parametrize("part", range(4))
def test_no_race_is_left_by_the_passes_and_no_signal_is_spare(part: int) -> None:
    """Taken away is each signal from each await; where edges are built, of these."""
    needed: Counter[tuple[bool, str]] = Counter()
    for seed in range(part, CASES, 4):
        rng = Random(seed)
        programs, settings = random_programs(rng), random_settings(rng)
        try:
            schedules = divided(programs, settings)
        except SpecError:
            continue
        oracle = Oracle(schedules)
        order: Order = "edges" if settings.emit is Emit.NODES else "streams"
        for each in dict.fromkeys(("streams", order)):
            assert not oracle.has_race(schedules, each), seed
            verify(schedules, order=each)
        for gone, less in without_a_signal(schedules):
            assert oracle.has_race(less, order), (seed, gone)
            assert objects(less, order), (seed, gone)
            needed[gone.is_handshake, settings.launch] += 1
    assert set(needed) == {(False, "free"), (False, "joined"), (True, "free")}
    assert min(needed.values()) > CASES // 40


@pytest.mark.parametrize("part", range(4))
def test_the_proof_and_all_pairs_agree_on_damage_within_units(part: int) -> None:
    """Some orders within a unit serve progress alone, and may go."""
    verdicts: Counter[tuple[Order, bool]] = Counter()
    for seed in range(part, CASES, 4):
        rng = Random(seed)
        programs, settings = random_programs(rng), random_settings(rng)
        try:
            schedules = divided(programs, settings)
        except SpecError:
            continue
        oracle = Oracle(schedules)
        order: Order = "edges" if settings.emit is Emit.NODES else "streams"
        damage = without_an_edge if order == "edges" else without_a_wait
        for less in islice(damage(schedules), 8):
            is_racy = oracle.has_race(less, order)
            assert objects(less, order) == is_racy, seed
            verdicts[order, is_racy] += 1
    assert min(verdicts["streams", True], verdicts["edges", True]) > CASES // 10
