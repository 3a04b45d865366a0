"""Placed -> Schedule: the fewest records and waits that give every edge of the graph.

In order of issue, each op waits for its predecessors on other streams that its stream does not
know of yet, where a stream knows what it ran, what it waited for, and what that knew. Of several
such predecessors, one that another of them knows is dropped. At most one event is recorded for an
op, right after it and named like it; waits stand right in front of the op that needs them.

Every stream forks from the origin: one whose first op knows nothing of the origin's beginning
waits for an event recorded there. Every stream joins it: at the end, the origin waits for the last
op of each stream that it does not know of.

Of a divided schedule each unit is laid out by itself: no event leads from one to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphc.ir import (
    Graph,
    Instruction,
    Memory,
    Placed,
    Record,
    Run,
    Schedule,
    Settings,
    Unit,
    Wait,
)
from graphc.passes.closure import NOTHING, History, grown, histories, joined, knows
from graphc.passes.find_units import unit_numbers
from graphc.text.diagnostics import Span

BEGIN = 0  # the bit of the origin's beginning; the op issued as n-th has bit n


@dataclass(slots=True)
class Knowledge:
    """What each op knows when it has run, as sets of bits in order of issue."""

    at: list[History]  # by bit, itself included
    recorded: set[int] = field(default_factory=set)

    def missing(self, wanted: list[int], known: History) -> tuple[list[int], History]:
        """Which of the wanted bits to wait for, the latest first, and what is known then."""
        waits = []
        for bit in sorted(wanted, reverse=True):
            if not knows(known, bit):
                waits.append(bit)
                known = joined(known, self.at[bit])
        self.recorded.update(waits)
        return waits, known


def insert_events(placed: Placed, memory: Memory, settings: Settings) -> Schedule:
    """Add records and waits so that every edge within a unit is ordered, none of them in vain."""
    graph = placed.graph
    units = placed.units or (Unit("all", graph.program.devices, placed.origin),)
    laid = [lay_out(placed, part) for part in parts(placed, units)]
    return Schedule(
        graph.program,
        placed.streams,
        placed.origin,
        issue(placed, laid),
        reduced_edges(graph, units),
        memory,
        settings.emit,
        units=placed.units,
        sync=settings.sync,
        launch=settings.launch,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """What one unit issues."""

    origin: str
    streams: tuple[str, ...]
    order: tuple[str, ...]


def parts(placed: Placed, units: Sequence[Unit]) -> Iterator[Part]:
    if len(units) == 1:
        streams = tuple(stream.name for stream in placed.streams)
        yield Part(units[0].origin, streams, placed.order)
        return
    numbers = unit_numbers(units)
    unit_of = {stream.name: numbers[stream.device] for stream in placed.streams}
    order: list[list[str]] = [[] for _ in units]
    for name in placed.order:
        order[unit_of[placed.stream_of[name]]].append(name)
    for place, unit in enumerate(units):
        streams = tuple(name for name, number in unit_of.items() if number == place)
        yield Part(unit.origin, streams, tuple(order[place]))


@dataclass(slots=True)
class Laid:
    """A unit with its waits: for each op, and at the end, the bits it waits for."""

    part: Part
    waits: list[list[int]]
    joins: list[int]
    recorded: set[int]

    @property
    def events(self) -> list[str]:
        return [f"{self.part.origin}/begin", *self.part.order]


def lay_out(placed: Placed, part: Part) -> Laid:
    """Find for each op of a unit, and for its end, what to wait for, and what is recorded."""
    bit_of = {name: bit for bit, name in enumerate(part.order, start=1)}
    before = placed.graph.edges.pred
    begun = grown(NOTHING, BEGIN)
    by_stream = dict.fromkeys(part.streams, NOTHING)
    by_stream[part.origin] = begun
    tails: dict[str, int] = {}
    knowledge = Knowledge([begun])
    waits = []
    for bit, name in enumerate(part.order, start=1):
        stream = placed.stream_of[name]
        wanted = [bit_of[other] for other in before[name] if other in bit_of]
        own, known = knowledge.missing(wanted, by_stream[stream])
        if not knows(known, BEGIN):
            own.append(BEGIN)
            knowledge.recorded.add(BEGIN)
            known = joined(known, begun)
        waits.append(own)
        by_stream[stream] = grown(known, bit)
        knowledge.at.append(by_stream[stream])
        tails[stream] = bit
    joins, _ = knowledge.missing(list(tails.values()), by_stream[part.origin])
    return Laid(part, waits, joins, knowledge.recorded)


def issue(placed: Placed, laid: Sequence[Laid]) -> tuple[Instruction, ...]:
    """The instructions in order of issue."""
    spans = {op.name: op.span for op in placed.graph.program.ops}
    result: list[Instruction] = [
        Record(each.part.origin, each.events[BEGIN]) for each in laid if BEGIN in each.recorded
    ]
    turns: dict[str, Iterator[list[Instruction]]] = {}
    for each in laid:
        turns |= dict.fromkeys(each.part.streams, issue_unit(placed, each, spans))
    for name in placed.order:
        result += next(turns[placed.stream_of[name]])
    for each in laid:
        origin, events = each.part.origin, each.events
        result += (Wait(origin, events[other], spans[events[other]]) for other in each.joins)
    return tuple(result)


def issue_unit(
    placed: Placed, laid: Laid, spans: Mapping[str, Span]
) -> Iterator[list[Instruction]]:
    """For each op of a unit its waits, the op, and its record."""
    events, recorded = laid.events, laid.recorded
    for bit, (name, waits) in enumerate(zip(laid.part.order, laid.waits, strict=True), start=1):
        stream, span = placed.stream_of[name], spans[name]
        step: list[Instruction] = [Wait(stream, events[other], span) for other in waits]
        step.append(Run(stream, name, span))
        if bit in recorded:
            step.append(Record(stream, name, span))
        yield step


def reduced_edges(graph: Graph, units: Sequence[Unit]) -> tuple[tuple[str, str], ...]:
    """The edges within units that do not follow from others there, in program order."""
    numbers = unit_numbers(units)
    names: list[list[str]] = [[] for _ in units]
    for op in graph.program.ops:
        names[numbers[op.device] if len(units) > 1 else 0].append(op.name)
    return tuple(edge for part in names for edge in reduced(part, graph.edges.pred))


def reduced(
    names: Sequence[str], pred: Mapping[str, Mapping[str, object]]
) -> Iterator[tuple[str, str]]:
    place = {name: index for index, name in enumerate(names)}
    before = [[place[other] for other in pred[name] if other in place] for name in names]
    closure = histories(before)
    for index, nodes in enumerate(before):
        follows = NOTHING
        for node in sorted(nodes, reverse=True):
            if not knows(follows, node):
                follows = joined(follows, closure[node])
                yield names[node], names[index]
