"""Placed -> Schedule: the fewest records and waits that give every edge of the graph.

In order of issue, each op waits for its predecessors on other streams that its stream does not
know of yet, where a stream knows what it ran, what it waited for, and what that knew. Of several
such predecessors, one that another of them knows is dropped. At most one event is recorded for an
op, right after it and named like it; waits stand right in front of the op that needs them.

Every stream forks from the origin: one whose first op knows nothing of the origin's beginning
waits for an event recorded there. Every stream joins it: at the end, the origin waits for the last
op of each stream that it does not know of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphc.ir import Emit, Graph, Instruction, Memory, Placed, Record, Run, Schedule, Wait
from graphc.passes.closure import NOTHING, History, grown, histories, joined, knows, predecessors

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


def insert_events(placed: Placed, memory: Memory, emit: Emit) -> Schedule:
    """Add records and waits so that every edge is ordered, none of them in vain."""
    waits, joins, recorded = find_waits(placed)
    graph = placed.graph
    return Schedule(
        graph.program,
        placed.streams,
        placed.origin,
        issue(placed, waits, joins, recorded),
        reduced_edges(graph),
        memory,
        emit,
    )


def find_waits(placed: Placed) -> tuple[list[list[int]], list[int], set[int]]:
    """For each op the bits it waits for; those the origin waits for at the end; all recorded."""
    bit_of = {name: bit for bit, name in enumerate(placed.order, start=1)}
    before = placed.graph.edges.pred
    begun = grown(NOTHING, BEGIN)
    by_stream = dict.fromkeys((stream.name for stream in placed.streams), NOTHING)
    by_stream[placed.origin] = begun
    tails: dict[str, int] = {}
    knowledge = Knowledge([begun])
    waits = []
    for bit, name in enumerate(placed.order, start=1):
        stream = placed.stream_of[name]
        wanted = [bit_of[other] for other in before[name]]
        own, known = knowledge.missing(wanted, by_stream[stream])
        if not knows(known, BEGIN):
            own.append(BEGIN)
            knowledge.recorded.add(BEGIN)
            known = joined(known, begun)
        waits.append(own)
        by_stream[stream] = grown(known, bit)
        knowledge.at.append(by_stream[stream])
        tails[stream] = bit
    joins, _ = knowledge.missing(list(tails.values()), by_stream[placed.origin])
    return waits, joins, knowledge.recorded


def issue(
    placed: Placed, waits: list[list[int]], joins: list[int], recorded: set[int]
) -> tuple[Instruction, ...]:
    """The instructions in order of issue."""
    events = [f"{placed.origin}/begin", *placed.order]
    spans = {op.name: op.span for op in placed.graph.program.ops}
    result: list[Instruction] = []
    if BEGIN in recorded:
        result.append(Record(placed.origin, events[BEGIN]))
    for bit, name in enumerate(placed.order, start=1):
        stream, span = placed.stream_of[name], spans[name]
        result += (Wait(stream, events[other], span) for other in waits[bit - 1])
        result.append(Run(stream, name, span))
        if bit in recorded:
            result.append(Record(stream, name, span))
    result += (Wait(placed.origin, events[other], spans[events[other]]) for other in joins)
    return tuple(result)


def reduced_edges(graph: Graph) -> tuple[tuple[str, str], ...]:
    """The edges that do not follow from others, in program order."""
    before = predecessors(graph)
    closure = histories(before)
    ops = graph.program.ops
    result = []
    for index, nodes in enumerate(before):
        follows = NOTHING
        for node in sorted(nodes, reverse=True):
            if not knows(follows, node):
                follows = joined(follows, closure[node])
                result.append((ops[node].name, ops[index].name))
    return tuple(result)
