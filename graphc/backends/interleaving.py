"""Launches op by op in an order that their schedules allow, picked by a seed.

Within a unit, ops come in the order of streams and events; of a graph that is made of its edges, in
the order of these alone. A unit that is launched freely begins a launch when it has ended the one
before. Units that are joined begin together, when all have ended, and end together. Between units
there are only signals, and they work as on GPUs: ``Begin`` counts the launches of its unit,
``Signal`` writes that count into a word of each unit that it tells, and ``Await`` lets go when its
words have reached the count of its own unit; of a handshake, the count before this launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from graphc.ir import Await, Awaited, Begin, Emit, LaunchContract, Op, Schedule, Signal
from graphc.text.diagnostics import CompilerBug


@dataclass(frozen=True, slots=True)
class Step:
    """An op that runs, or a unit's (or everyone's) caller before a launch and after it."""

    launch: int
    unit: str
    op: Op | None = None
    moment: Literal["before", "run", "after"] = "run"


def interleaving(launches: Sequence[Schedule], seed: int) -> Iterator[Step]:
    """The steps of some launches, one after the other in every unit."""
    state = Interleaving(launches, Random(seed))
    while not state.is_done:
        yield state.step()


@dataclass(slots=True)
class Pending:
    """The ops of one unit in one launch that have yet to run."""

    missing: dict[str, int]
    followers: dict[str, list[str]]
    ready: list[str]
    running: int

    def done(self, name: str) -> None:
        self.running -= 1
        self.ready.remove(name)
        for each in self.followers[name]:
            self.missing[each] -= 1
            if not self.missing[each]:
                self.ready.append(each)


@dataclass(slots=True)
class Progress:
    """How far a unit is, and what it counts."""

    name: str
    devices: tuple[str, ...]
    pace: float  # units run at different paces, so that one is ahead
    turn: int = 0
    pending: Pending | None = None
    epochs: dict[str, int] = field(default_factory=dict)  # entry -> launches begun
    words: dict[str, int] = field(default_factory=dict)  # signal -> the count last told


class Interleaving:
    """All units side by side."""

    def __init__(self, launches: Sequence[Schedule], rng: Random) -> None:
        self.launches, self.rng = launches, rng
        self.units = [
            Progress(unit.name, unit.devices, rng.choice((0.05, 1.0, 1.0)))
            for unit in (launches[0].parts if launches else ())
        ]
        self.ops = [{op.name: op for op in each.program.ops} for each in launches]
        self.before = [predecessors(each) for each in launches]
        self.is_free = bool(launches) and all(
            each.launch is LaunchContract.FREE for each in launches
        )

    @property
    def is_done(self) -> bool:
        return all(unit.turn == len(self.launches) for unit in self.units)

    def step(self) -> Step:
        """Run one op, or let one unit begin or end a launch."""
        able = [(unit, moves) for unit in self.units if (moves := self.moves(unit))]
        if not able:
            stuck = ", ".join(unit.name for unit in self.units if unit.turn < len(self.launches))
            raise CompilerBug("interleaving", f"units wait for each other: {stuck}")
        (unit, moves), *_ = self.rng.choices(able, [unit.pace for unit, _ in able])
        return self.move(unit, self.rng.choice(moves))

    def moves(self, unit: Progress) -> list[str | None]:
        """The ops that a unit can run; None: it can begin or end a launch."""
        if unit.turn == len(self.launches):
            return []
        if unit.pending is None:
            return [None] if self.is_free or self.have_ended(unit.turn) else []
        if not unit.pending.running:
            return [None] if self.is_free or self.are_idle(unit.turn) else []
        if not (self.is_free or self.have_begun(unit.turn)):
            return []
        ops = self.ops[unit.turn]
        return [name for name in unit.pending.ready if self.can_run(unit, ops[name])]

    def have_ended(self, turn: int) -> bool:
        """Whether all units have ended the launches before."""
        return all(each.turn >= turn for each in self.units)

    def have_begun(self, turn: int) -> bool:
        return all(each.turn > turn or each.pending is not None for each in self.units)

    def are_idle(self, turn: int) -> bool:
        """Whether no unit has anything left to do in this launch."""
        return all(
            each.turn > turn or (each.pending is not None and not each.pending.running)
            for each in self.units
        )

    def can_run(self, unit: Progress, op: Op) -> bool:
        if not isinstance(op.work, Await):
            return True
        return all(
            unit.words.get(each.signal, 0) >= self.wanted(unit, each) for each in op.work.signals
        )

    def wanted(self, unit: Progress, awaited: Awaited) -> int:
        epoch = unit.epochs.get(awaited.entry, 0)
        is_own = awaited.entry == self.launches[unit.turn].entry
        return epoch - 1 if awaited.is_handshake and is_own else epoch

    def move(self, unit: Progress, name: str | None) -> Step:
        turn = unit.turn
        if unit.pending is None:
            unit.pending = self.pending(unit)
            return Step(turn, unit.name, moment="before")
        if name is None:
            unit.pending, unit.turn = None, turn + 1
            return Step(turn, unit.name, moment="after")
        op, entry = self.ops[turn][name], self.launches[turn].entry
        if isinstance(op.work, Begin):
            unit.epochs[entry] = unit.epochs.get(entry, 0) + 1
        if isinstance(op.work, Signal):
            for other in self.units:
                if other.name in op.work.to:
                    other.words[op.work.signal] = unit.epochs[entry]
        unit.pending.done(name)
        return Step(turn, unit.name, op)

    def pending(self, unit: Progress) -> Pending:
        before = self.before[unit.turn]
        own = [name for name, op in self.ops[unit.turn].items() if op.device in unit.devices]
        followers: dict[str, list[str]] = {name: [] for name in own}
        for name in own:
            for each in before[name]:
                followers[each].append(name)
        missing = {name: len(before[name]) for name in own}
        ready = [name for name in own if not missing[name]]
        return Pending(missing, followers, ready, len(own))


# What each op waits for in its unit


def predecessors(schedule: Schedule) -> dict[str, set[str]]:
    if schedule.emit is Emit.NODES:
        return predecessors_by_edges(schedule)
    return predecessors_by_streams(schedule)


def predecessors_by_edges(schedule: Schedule) -> dict[str, set[str]]:
    before: dict[str, set[str]] = {op.name: set() for op in schedule.program.ops}
    for first, second in schedule.edges:
        before[second].add(first)
    return before


def predecessors_by_streams(schedule: Schedule) -> dict[str, set[str]]:
    """What each op waits for directly: its stream's earlier op, and what its waits recorded."""
    reached: dict[str, Sequence[str]] = {}  # stream -> ops that its next op comes after
    events: dict[str, Sequence[str]] = {}
    before: dict[str, set[str]] = {}
    for each in schedule.instructions:
        known = reached.get(each.stream, ())
        match each.kind:
            case "run":
                before[each.op] = set(known)
                reached[each.stream] = (each.op,)
            case "record":
                events[each.event] = known
            case "wait":
                reached[each.stream] = (*known, *events[each.event])
            case "sync":
                raise CompilerBug("reference", "a schedule with host steps cannot run")
    return before
