"""What happens before what: every op that runs, and the caller, with vector clocks over chains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphc.ir import HOST, Op, Record, Run, Schedule, Sync, Wait
from graphc.text.diagnostics import NOWHERE, Span

Order: TypeAlias = Literal["streams", "edges"]


@dataclass(slots=True)
class Action:
    """One op in one replay, or the caller's work before (BEGIN) or after (END) it."""

    op: Op | None
    replay: int
    rank: tuple[int, int]  # its place in the order that defines the right result
    before: Iterable[int]
    chain: int
    position: int  # in its chain
    stream: str
    issued: int  # the index of its instruction
    span: Span
    clock: dict[int, int]  # chain -> the latest position known

    @property
    def name(self) -> str:
        if self.op is not None:
            return self.op.name
        return "the caller, before the launch" if self.rank[1] < 0 else "the caller, afterwards"


class Trace:
    """Actions with their clocks."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.chain_of: dict[str, int] = {}  # stream -> chain
        self.tails: list[int] = []  # chain -> its last action

    def add(
        self,
        op: Op | None,
        *,
        replay: int,
        place: int,
        before: Iterable[int],
        stream: str | None,
        issued: int = -1,
        span: Span = NOWHERE,
    ) -> int:
        """Append an action; in the chain of its stream, or (no stream) where it continues one."""
        clock: dict[int, int] = {}
        for other in before:
            self.learn(clock, self.actions[other])
        number = len(self.actions)
        chain = self.chain_of_stream(stream) if stream else self.chain_behind(before, clock)
        position = self.actions[self.tails[chain]].position + 1 if self.tails[chain] >= 0 else 0
        clock[chain] = position
        self.actions.append(
            Action(
                op,
                replay,
                (replay, place),
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

    def chain_of_stream(self, stream: str) -> int:
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
        """Actions of the first replay that its beginning or its end does not order."""
        begin = 0
        end = next(n for n, each in enumerate(self.actions) if n and each.op is None)
        last: dict[int, int] = {}
        for number in range(1, len(self.actions)):
            action = self.actions[number]
            if action.op is None or action.replay:
                continue
            if action.chain not in last and not self.is_before(begin, number):
                yield begin, number
            last[action.chain] = number
        for number in last.values():
            if not self.is_before(number, end):
                yield number, end


def trace_streams(schedule: Schedule, replays: int, dropped: frozenset[int]) -> Trace:
    """The actions of the instructions as issued, ``replays`` times, without those dropped."""
    trace = Trace()
    ops = {op.name: op for op in schedule.program.ops}
    places = {op.name: place for place, op in enumerate(schedule.program.ops)}
    seen: dict[str, dict[int, None]] = {stream.name: {} for stream in schedule.streams}
    host_streams = {each.name for each in schedule.streams if each.device == HOST}
    events: dict[str, dict[int, None]] = {}
    host: dict[int, None] = {}  # what the issuing thread has waited for, and run
    origin = schedule.origin

    def caller(replay: int, place: int) -> None:
        before = {**seen[origin], **host}
        number = trace.add(None, replay=replay, place=place, before=before, stream=origin)
        seen[origin] = {number: None}

    for replay in range(replays):
        caller(replay, -1)
        for index, each in enumerate(schedule.instructions):
            if index in dropped:
                continue
            known = host if each.stream in host_streams else seen[each.stream]
            match each:
                case Run(stream, name, span):
                    number = trace.add(
                        ops[name],
                        replay=replay,
                        place=index if schedule.is_handwritten else places[name],
                        before={**known, **host} if host else known,
                        stream=stream,
                        issued=index,
                        span=span if span.line else ops[name].span,
                    )
                    seen[stream] = {number: None}
                    if stream in host_streams:
                        host = {number: None}
                case Record(_, event):
                    events[event] = known
                case Wait(stream, event):
                    if stream in host_streams:
                        host = {**host, **events[event]}
                    else:
                        seen[stream] = {**known, **events[event]}
                case Sync():
                    host = {**host, **known}
        caller(replay, len(schedule.instructions) + len(places))
    return trace


def trace_edges(schedule: Schedule) -> Trace:
    """The actions of a graph of nodes: only the edges, between the launch's beginning and end."""
    trace = Trace()
    before: dict[str, list[str]] = {op.name: [] for op in schedule.program.ops}
    is_leaf = dict.fromkeys(before, True)
    for one, two in schedule.edges:
        before[two].append(one)
        is_leaf[one] = False
    begin = trace.add(None, replay=0, place=-1, before=(), stream=None)
    numbers: dict[str, int] = {}
    for place, op in enumerate(schedule.program.ops):
        nodes = tuple(numbers[name] for name in before[op.name]) or (begin,)
        numbers[op.name] = trace.add(
            op, replay=0, place=place, before=nodes, stream=None, span=op.span
        )
    leaves = tuple(numbers[name] for name, leaf in is_leaf.items() if leaf) or (begin,)
    trace.add(None, replay=0, place=len(numbers), before=leaves, stream=None)
    return trace
