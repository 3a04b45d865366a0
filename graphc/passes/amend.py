"""Placed -> Placed: put in ops that carry order between units, each beside one that is there.

Signals go on side streams, so that they hold nothing up, as urgent as the most urgent op: another
unit waits for them. A signal is put behind another one only if it comes after that one anyway: side
streams add no order.

From here on the program is in the order of issue, which is an order of its edges, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import networkx as nx

from graphc.ir import Await, Awaited, Graph, Hazard, Op, Placed, Signal, Stream
from graphc.passes.closure import NOTHING, History, joined, knows

Beside = Mapping[str, Sequence[Op]]  # op -> what is put next to it
Edge = tuple[str, str, tuple[Hazard, ...]]
AFTER = (Hazard.AFTER,)


@dataclass(frozen=True, slots=True)
class Amendment:
    """Ops to put in, at both ends and beside others."""

    before: Beside
    behind: Beside
    stream_of: Mapping[str, str]
    streams: tuple[Stream, ...]  # new ones
    edges: tuple[Edge, ...]
    first: tuple[Op, ...] = ()
    last: tuple[Op, ...] = ()
    instead: Mapping[str, Op] = field(default_factory=dict)  # ops with other work


def amend(placed: Placed, more: Amendment, *, without: frozenset[str] = frozenset()) -> Placed:
    """The schedule with these ops, streams and edges, and without some of its own ops."""
    program = placed.graph.program
    by_name = {**{op.name: op for op in program.ops}, **more.instead}
    own = merged((by_name[name] for name in placed.order), more.before, more.behind, without)
    ops = (*more.first, *own, *more.last)
    edges: nx.DiGraph[str] = nx.DiGraph()
    edges.add_nodes_from(op.name for op in ops)
    edges.add_edges_from(
        (one, two, data)
        for one, two, data in placed.graph.edges.edges(data=True)
        if one not in without and two not in without
    )
    add_edges(edges, more.edges)
    places = {device: place for place, device in enumerate(program.devices)}
    streams = sorted((*placed.streams, *more.streams), key=lambda each: places[each.device])
    stream_of = {**placed.stream_of, **more.stream_of}
    return replace(
        placed,
        graph=Graph(replace(program, ops=ops), edges),
        streams=tuple(streams),
        order=tuple(op.name for op in ops),
        stream_of={op.name: stream_of[op.name] for op in ops},
    )


def add_edges(edges: nx.DiGraph[str], more: Iterable[Edge]) -> None:
    for one, two, hazards in more:
        if not edges.has_edge(one, two):
            edges.add_edge(one, two, hazards=hazards)


def merged(
    ops: Iterable[Op], before: Beside, behind: Beside, without: frozenset[str]
) -> Iterator[Op]:
    for op in ops:
        yield from before.get(op.name, ())
        if op.name not in without:
            yield op
        yield from behind.get(op.name, ())


# The ops


def signal_op(name: str, signal: str, to: tuple[str, ...], op: Op) -> Op:
    """A signal behind an op, which is the last of those that it speaks for."""
    return Op(name, f"signal/{op.step}", op.device, Signal(signal, to), (), span=op.span)


def await_op(name: str, signals: tuple[Awaited, ...], op: Op) -> Op:
    """An await in front of an op."""
    return Op(name, f"await/{op.step}", op.device, Await(signals), (), span=op.span)


# Streams


@dataclass(slots=True)
class SideStreams:
    """Streams for signals: each holds signals that come one after the other anyway."""

    label: str  # "signal"
    taken: set[str]  # names
    priority: int
    made: list[Stream] = field(default_factory=list)
    tails: dict[str, list[tuple[str, Sequence[int]]]] = field(default_factory=dict)

    def choose(self, device: str, members: Sequence[int], known: History) -> str:
        """The stream of a signal that speaks for these ops, and knows all that they know."""
        tails = self.tails.setdefault(device, [])
        for place, (stream, last) in enumerate(tails):
            if all(knows(known, other) for other in last):
                tails[place] = stream, members
                return stream
        name = self.new_name(device)
        self.made.append(Stream(name, device, self.priority))
        tails.append((name, members))
        return name

    def new_name(self, device: str) -> str:
        name, number = f"{device}.{self.label}", 0
        while name in self.taken:
            number += 1
            name = f"{device}.{self.label}.{number}"
        self.taken.add(name)
        return name


def side_streams(placed: Placed, label: str) -> SideStreams:
    priorities = (op.placement.priority for op in placed.graph.program.ops)
    return SideStreams(label, {each.name for each in placed.streams}, min((-1, *priorities)))


def union(histories: Iterable[History]) -> History:
    known = NOTHING
    for each in histories:
        known = joined(known, each)
    return known
