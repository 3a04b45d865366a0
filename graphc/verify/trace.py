"""What happens before what: every op that runs, and the caller, with vector clocks over chains.

An action has direct predecessors: the action before it on its stream, what the events it waited
for had seen at their latest record, what the host had waited for when it issued the op, and, for
an await, the signals. A handshake knows the signal of the latest earlier launch of that entry, and
nothing if there was none.

Launches are unrolled one after the other. Each begins and ends with the caller, who is one actor
for all units (``joined``: every unit begins after it and ends before it) or one for each unit
(``free``: on the origin of that unit, where one launch comes after the other).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from graphc.ir import (
    HOST,
    Await,
    Begin,
    LaunchContract,
    Op,
    Record,
    Run,
    Schedule,
    Signal,
    Sync,
    Wait,
)
from graphc.text.diagnostics import NOWHERE, Span

Order: TypeAlias = Literal["streams", "edges"]
Known: TypeAlias = dict[int, None]  # actions, by number
ALL_UNITS = ""  # the unit of the caller of them all, and of what is not divided
BEFORE = -1  # the place of the caller before a launch


@dataclass(slots=True)
class Action:
    """One op in one launch, or the caller's work before or after it."""

    op: Op | None
    schedule: Schedule
    replay: int  # which of the launches
    place: tuple[int, int]  # in the order that defines the right result
    unit: str
    before: Iterable[int]
    chain: int
    position: int  # in its chain
    stream: str
    issued: int  # the index of its instruction
    span: Span
    clock: dict[int, int]  # chain -> the latest position known

    @property
    def is_caller_before(self) -> bool:
        return self.op is None and self.place[1] == BEFORE

    @property
    def name(self) -> str:
        if self.op is not None:
            return self.op.name
        whom = f" of unit '{self.unit}'" if self.unit else ""
        moment = "before the launch" if self.is_caller_before else "afterwards"
        return f"the caller{whom}, {moment}"


class Trace:
    """Actions with their clocks."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.chain_of: dict[Hashable, int] = {}  # stream of an entry -> chain
        self.tails: list[int] = []  # chain -> its last action

    def add(
        self,
        op: Op | None,
        schedule: Schedule,
        *,
        replay: int,
        place: int,
        before: Iterable[int],
        stream: str | None,
        unit: str = ALL_UNITS,
        issued: int = -1,
        span: Span = NOWHERE,
    ) -> int:
        """Append an action; in the chain of its stream, or (no stream) where it continues one."""
        clock: dict[int, int] = {}
        for other in before:
            self.learn(clock, self.actions[other])
        number = len(self.actions)
        if stream is None:
            chain = self.chain_behind(before, clock)
        else:
            chain = self.chain_of_stream((schedule.entry, stream))
        position = self.actions[self.tails[chain]].position + 1 if self.tails[chain] >= 0 else 0
        clock[chain] = position
        self.actions.append(
            Action(
                op,
                schedule,
                replay,
                (replay, place),
                unit,
                before,
                chain,
                position,
                stream or "",
                issued,
                span,
                clock,
            )
        )
        self.tails[chain] = number
        return number

    def learn(self, clock: dict[int, int], other: Action) -> None:
        if clock.get(other.chain, -1) >= other.position:
            return  # whoever knows an action knows all that it knew
        if not clock:
            clock.update(other.clock)
            return
        for chain, position in other.clock.items():
            if clock.get(chain, -1) < position:
                clock[chain] = position

    def chain_of_stream(self, stream: Hashable) -> int:
        chain = self.chain_of.setdefault(stream, len(self.tails))
        if chain == len(self.tails):
            self.tails.append(-1)
        return chain

    def chain_behind(self, before: Iterable[int], clock: Mapping[int, int]) -> int:
        """A chain whose last action is known, a direct predecessor's if possible; or a new one."""
        for other in before:
            chain = self.actions[other].chain
            if self.tails[chain] == other:
                return chain
        for chain, position in clock.items():
            if self.actions[self.tails[chain]].position == position:
                return chain
        self.tails.append(-1)
        return len(self.tails) - 1

    def is_before(self, one: int, two: int) -> bool:
        before, after = self.actions[one], self.actions[two]
        return after.clock.get(before.chain, -1) >= before.position

    def is_host(self, number: int) -> bool:
        """Whether the issuing thread runs it: that is in the caller's hands, not on a stream."""
        op = self.actions[number].op
        return op is not None and op.device == HOST

    def loose_ends(self) -> Iterator[tuple[int, int]]:
        """Actions of the first launch that its beginning, its unit's, or its end does not order."""
        begins: dict[str, int] = {}
        ends: dict[str, int] = {}
        counted: dict[str, int] = {}  # unit -> its `Begin`
        first: dict[tuple[str, int], int] = {}  # of a unit in a chain
        last: dict[tuple[str, int], int] = {}
        for number, action in enumerate(self.actions):
            if action.replay:
                break
            if action.op is None:
                (begins if action.is_caller_before else ends)[action.unit] = number
                continue
            if type(action.op.work) is Begin:
                counted[action.unit] = number
            first.setdefault((action.unit, action.chain), number)
            last[action.unit, action.chain] = number
        for (unit, _), number in first.items():
            begin = begins[unit if unit in begins else ALL_UNITS]
            if not self.is_before(begin, number):
                yield begin, number
            elif not self.is_before(counted.get(unit, number), number):
                yield counted[unit], number
        for (unit, _), number in last.items():
            end = ends[unit if unit in ends else ALL_UNITS]
            if not self.is_before(number, end):
                yield number, end


def is_free(schedule: Schedule) -> bool:
    """Whether a unit may be a launch ahead of another."""
    return schedule.launch is LaunchContract.FREE and len(schedule.units) > 1


def unit_of_device(schedule: Schedule) -> dict[str, str]:
    """Device -> its unit; nothing where the schedule is not divided."""
    return {device: unit.name for unit in schedule.units for device in unit.devices}


def trace_launches(
    launches: Sequence[Schedule], order: Order, dropped: frozenset[int] = frozenset()
) -> Trace:
    """The actions of launches, one after the other, without the instructions dropped."""
    issue = Issue(Trace(), dropped)
    for replay, schedule in enumerate(launches):
        issue.launch(schedule, replay, order)
    return issue.trace


@dataclass(slots=True)
class Issue:
    """Issues launches: what streams, events, the host, callers and signals know by now."""

    trace: Trace
    dropped: frozenset[int]
    seen: dict[str, dict[str, Known]] = field(default_factory=dict)  # entry -> stream -> actions
    events: dict[str, dict[str, Known]] = field(default_factory=dict)  # entry -> event -> actions
    host: Known = field(default_factory=dict)  # what the issuing thread has waited for, and run
    callers: dict[str, int] = field(default_factory=dict)  # unit -> its caller's last action
    sent: dict[tuple[str, str], int] = field(default_factory=dict)  # entry, signal: this launch's
    earlier: dict[tuple[str, str], int] = field(default_factory=dict)  # those of launches before

    def launch(self, schedule: Schedule, replay: int, order: Order) -> None:
        if order == "edges":
            self.follow_edges(schedule, replay)
        else:
            self.follow_streams(schedule, replay)
        self.earlier.update(self.sent)
        self.sent.clear()

    def follow_streams(self, schedule: Schedule, replay: int) -> None:
        """The instructions as issued."""
        ops = {op.name: op for op in schedule.program.ops}
        places = {op.name: place for place, op in enumerate(schedule.program.ops)}
        unit_of = unit_of_device(schedule)
        host_streams = {each.name for each in schedule.streams if each.device == HOST}
        seen = self.seen.setdefault(schedule.entry, {each.name: {} for each in schedule.streams})
        events = self.events.setdefault(schedule.entry, {})
        self.call(schedule, replay, BEFORE, seen)
        for index, each in enumerate(schedule.instructions):
            if index in self.dropped:
                continue
            known = self.host if each.stream in host_streams else seen[each.stream]
            match each:
                case Run(stream, name, span):
                    op = ops[name]
                    number = self.trace.add(
                        op,
                        schedule,
                        replay=replay,
                        place=index if schedule.is_handwritten else places[name],
                        before=self.before(op, {**known, **self.host} if self.host else known),
                        stream=stream,
                        unit=unit_of.get(op.device, ALL_UNITS),
                        issued=index,
                        span=span if span.line else op.span,
                    )
                    self.note(op, schedule, number)
                    seen[stream] = {number: None}
                    if stream in host_streams:
                        self.host = {number: None}
                case Record(_, event):
                    events[event] = known
                case Wait(stream, event):
                    if stream in host_streams:
                        self.host = {**self.host, **events[event]}
                    else:
                        seen[stream] = {**known, **events[event]}
                case Sync():
                    self.host = {**self.host, **known}
        self.call(schedule, replay, len(schedule.instructions) + len(places), seen)

    def follow_edges(self, schedule: Schedule, replay: int) -> None:
        """Nodes of graphs: only the edges, between the beginning and the end of the launch."""
        ops = schedule.program.ops
        unit_of = unit_of_device(schedule)
        before: dict[str, list[str]] = {op.name: [] for op in ops}
        leaves = {op.name: unit_of.get(op.device, ALL_UNITS) for op in ops}
        for one, two in schedule.edges:
            before[two].append(one)
            leaves.pop(one, None)
        ends: dict[str, Known] = {name: {} for name, _ in origins(schedule)}
        self.call(schedule, replay, BEFORE, ends, on_streams=False)
        roots = ends
        ends = {name: dict(known) for name, known in ends.items()}
        numbers: dict[str, int] = {}
        for place, op in enumerate(ops):
            unit = unit_of.get(op.device, ALL_UNITS)
            nodes = dict.fromkeys(numbers[name] for name in before[op.name]) or roots[unit]
            numbers[op.name] = self.trace.add(
                op,
                schedule,
                replay=replay,
                place=place,
                before=self.before(op, nodes),
                stream=None,
                unit=unit,
                span=op.span,
            )
            self.note(op, schedule, numbers[op.name])
        for name, unit in leaves.items():
            ends[unit][numbers[name]] = None
        self.call(schedule, replay, len(numbers), ends, on_streams=False)

    def call(
        self,
        schedule: Schedule,
        replay: int,
        place: int,
        seen: dict[str, Known],
        *,
        on_streams: bool = True,
    ) -> None:
        """The caller, before or after a launch: once for all units, or for each on its origin."""
        every = origins(schedule)
        groups = [(ALL_UNITS, every)]
        if is_free(schedule):
            groups = [(each[0], [each]) for each in every]
        for unit, members in groups:
            keys = [origin if on_streams else name for name, origin in members]
            before = {**self.host}
            if unit in self.callers:
                before[self.callers[unit]] = None
            for key in keys:
                before |= seen[key]
            stream = keys[0] if len(keys) == 1 else "the caller"
            number = self.trace.add(
                None,
                schedule,
                replay=replay,
                place=place,
                before=before,
                stream=stream if on_streams else None,
                unit=unit,
            )
            self.callers[unit] = number
            seen.update((key, {number: None}) for key in keys)

    def before(self, op: Op, known: Known) -> Known:
        """What an op comes after: of an await, the signals, too."""
        if type(op.work) is not Await:
            return known
        heard = {**known}
        for each in op.work.signals:
            signals = self.earlier if each.is_handshake else self.sent
            number = signals.get((each.entry, each.signal))
            if number is not None:
                heard[number] = None
        return heard

    def note(self, op: Op, schedule: Schedule, number: int) -> None:
        if type(op.work) is Signal:
            self.sent[schedule.entry, op.work.signal] = number


def origins(schedule: Schedule) -> list[tuple[str, str]]:
    """Each unit and the stream on which it begins and ends; of an undivided schedule, the one."""
    return [(each.name, each.origin) for each in schedule.units] or [(ALL_UNITS, schedule.origin)]
