"""Graph -> (Graph, Memory): give every buffer its bytes.

A buffer with a role has an allocation of its own, so that it can be bound. Scratch lies in one
arena for each device; mapped scratch in one for each set of devices that it is near to. Buffers
share a slot as wholes, whatever their sizes; a slot is as large as its largest. A buffer that
others overlay never shares otherwise; an overlay lies at its offset in its base.

- ``concurrent``: two buffers share only if all accesses of one are before all accesses of the other
  in the graph as it is. This adds no order.
- ``tight``: two buffers share if program order separates them. The orders that are missing then
  are added to the graph, as edges or through a join, and counted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeAlias

import networkx as nx

from graphc.ir import (
    MAPPED,
    Allocation,
    Buffer,
    Graph,
    Hazard,
    Join,
    Memory,
    Op,
    Placement,
    Program,
    Role,
    Slot,
    Unit,
)
from graphc.passes.closure import (
    NOTHING,
    History,
    as_set,
    histories,
    knows,
    members,
    predecessors,
    shared,
)
from graphc.passes.find_units import unit_numbers

ALIGNMENT = 256
CANDIDATES = 16  # slots tried for a buffer: keeps the pass linear where nothing can be shared
SEVERAL = 3  # fewer predecessors than this never need a join


def plan_memory(graph: Graph, memory: str, units: tuple[Unit, ...] = ()) -> tuple[Graph, Memory]:
    """Lay out all buffers; ``memory`` is ``concurrent`` or ``tight``."""
    program, before = graph.program, predecessors(graph)
    scratch = scratch_bases(program, units)
    lives = lifetimes(program, scratch)
    if memory == "tight":
        arenas = share(program, lives, fits_by_program)
        graph, added = add_orders(graph, before, arenas)
        return graph, Memory(*place(program, scratch, arenas), added)
    closure = histories(before)
    for life in lives:
        life.before_all = shared(closure[index] for index in life.ops)
    return graph, Memory(*place(program, scratch, share(program, lives, fits_by_graph)))


def separate(program: Program) -> Memory:
    """A layout in which only overlays share bytes: that of a hand-written schedule."""
    arenas: dict[Arena, list[Row]] = {}
    scratch = scratch_bases(program)
    for name in scratch:
        buffer = program.buffers[name]
        arenas.setdefault(arena_of(buffer), []).append(Row(buffer.nbytes, [Life(name)]))
    return Memory(*place(program, scratch, arenas))


# Lifetimes


@dataclass(slots=True)
class Life:
    """The ops that touch a scratch buffer or an overlay of it, in program order."""

    buffer: str
    ops: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    before_all: History = NOTHING  # the ops that are before all of them
    reading: int = 0  # as sets: for the orders that `tight` adds
    writing: int = 0

    @property
    def touching(self) -> int:
        return self.reading | self.writing


def lifetimes(program: Program, scratch: Mapping[str, None]) -> list[Life]:
    """The lives of all scratch buffers that are touched, by their first op."""
    base_of = {name: resolve(program.buffers, name)[0] for name in program.buffers}
    lives: dict[str, Life] = {}
    for index, op in enumerate(program.ops):
        for access in op.accesses:
            base = base_of[access.region.buffer]
            if base not in scratch:
                continue
            life = lives.setdefault(base, Life(base))
            if not life.ops or life.ops[-1] != index:
                life.ops.append(index)
            if access.mode.is_read:
                life.reads.append(index)
            if access.mode.is_write:
                life.writes.append(index)
    return list(lives.values())


def scratch_bases(program: Program, units: tuple[Unit, ...] = ()) -> dict[str, None]:
    """The buffers that lie in arenas: scratch that is no overlay, nor below one with a role."""
    bound = {
        resolve(program.buffers, name)[0]
        for name, buffer in program.buffers.items()
        if buffer.role is not Role.SCRATCH
    }
    if units:
        bound |= between_units(program, units)
    return {
        name: None
        for name, buffer in program.buffers.items()
        if buffer.overlay is None and name not in bound
    }


def between_units(program: Program, units: tuple[Unit, ...]) -> set[str]:
    """The buffers that more than the unit of their device touches, or may touch."""
    unit_of = unit_numbers(units)
    found = set()
    for op in program:
        for access in op.accesses:
            buffer = program.buffers[access.region.buffer]
            if buffer.is_symmetric or unit_of.get(buffer.device) != unit_of[op.device]:
                found.add(resolve(program.buffers, buffer.name)[0])
    return found


def resolve(buffers: Mapping[str, Buffer], name: str) -> tuple[str, int]:
    """The buffer whose bytes these are in the end, and from which byte on."""
    offset = 0
    while (overlay := buffers[name].overlay) is not None:
        name, offset = overlay[0], offset + overlay[1]
    return name, offset


# Sharing


@dataclass(frozen=True, slots=True)
class Arena:
    """Scratch memory of one kind."""

    device: str
    near: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "/".join((self.device, "scratch", *self.near))


@dataclass(slots=True)
class Row:
    """A slot of an arena, and the buffers that lie in it one after the other."""

    nbytes: int
    lives: list[Life]


Fits: TypeAlias = Callable[[Life, Life], bool]


def arena_of(buffer: Buffer) -> Arena:
    return Arena(buffer.device, tuple(sorted(buffer.near)) if buffer.device == MAPPED else ())


def fits_by_graph(old: Life, new: Life) -> bool:
    if old.ops[-1] >= new.ops[0]:
        return False
    start = new.before_all[0]
    later = takewhile(lambda op: op >= start, reversed(old.ops))
    return all(knows(new.before_all, op) for op in later)


def fits_by_program(old: Life, new: Life) -> bool:
    return old.ops[-1] < new.ops[0]


def share(program: Program, lives: list[Life], fits: Fits) -> dict[Arena, list[Row]]:
    """Lay lives in rows; whoever fits behind the last life of a row fits behind all of them."""
    overlaid = {each.overlay[0] for each in program.buffers.values() if each.overlay is not None}
    arenas: dict[Arena, list[Row]] = {}
    open_rows: dict[Arena, list[tuple[int, int, int]]] = {}  # (nbytes, last op, row), sorted
    for life in lives:
        buffer = program.buffers[life.buffer]
        rows = arenas.setdefault(arena_of(buffer), [])
        # What nothing writes would not pass on an order from those before it to those behind it.
        if life.buffer in overlaid or not life.writes:
            rows.append(Row(buffer.nbytes, [life]))
            continue
        choices = open_rows.setdefault(arena_of(buffer), [])
        number = take(choices, rows, life, buffer.nbytes, fits)
        if number is None:
            number = len(rows)
            rows.append(Row(buffer.nbytes, [life]))
        else:
            rows[number].lives.append(life)
            rows[number].nbytes = max(rows[number].nbytes, buffer.nbytes)
        insort(choices, (rows[number].nbytes, life.ops[-1], number))
    return arenas


def take(
    choices: list[tuple[int, int, int]], rows: list[Row], life: Life, nbytes: int, fits: Fits
) -> int | None:
    """Take out the smallest row that is large enough and free; else the largest that can grow."""
    middle = bisect_left(choices, (nbytes, -1, -1))
    larger = range(middle, min(middle + CANDIDATES, len(choices)))
    smaller = range(middle - 1, max(middle - 1 - CANDIDATES, -1), -1)
    for index in (*larger, *smaller):
        number: int = choices[index][2]
        if fits(rows[number].lives[-1], life):
            del choices[index]
            return number
    return None


# Addresses


def place(
    program: Program, scratch: Mapping[str, None], arenas: Mapping[Arena, list[Row]]
) -> tuple[tuple[Allocation, ...], dict[str, Slot]]:
    """Allocations and slots: arenas row by row, then buffers with a role, then overlays."""
    allocations = []
    slots: dict[str, Slot] = {}
    for arena, rows in arenas.items():
        offset = 0
        for row in rows:
            for life in row.lives:
                slots[life.buffer] = Slot(arena.name, offset)
            offset += -(-row.nbytes // ALIGNMENT) * ALIGNMENT
        allocations.append(Allocation(arena.name, arena.device, offset, arena.near))
    for name, buffer in program.buffers.items():
        if buffer.overlay is None and name not in scratch:
            slots[name] = Slot(name, 0)
            near = arena_of(buffer).near
            allocations.append(Allocation(name, buffer.device, buffer.nbytes, near))
    for name, buffer in program.buffers.items():
        base, offset = resolve(program.buffers, name)
        if buffer.overlay is not None and base in slots:
            slots[name] = Slot(slots[base].allocation, slots[base].offset + offset)
    return tuple(allocations), slots


# Orders that `tight` adds


@dataclass(slots=True)
class Link:
    """Two buffers one after the other in a row, and the join between them, if there is one."""

    old: Life
    new: Life
    join: str | None = None
    before_join: int = 0  # what is before it


def add_orders(
    graph: Graph, before: list[list[int]], arenas: Mapping[Arena, list[Row]]
) -> tuple[Graph, int]:
    """The graph with an order from each buffer of a row to the next, where there was none."""
    for life in (life for rows in arenas.values() for row in rows for life in row.lives):
        life.reading, life.writing = as_set(life.reads), as_set(life.writes)
    links: dict[int, list[Link]] = {}  # op -> the rows in which its buffers have a forerunner
    for rows in arenas.values():
        for row in rows:
            for old, new in zip(row.lives, row.lives[1:], strict=False):
                link = Link(old, new)
                for index in new.ops:
                    links.setdefault(index, []).append(link)
    if not links:
        return graph, 0
    ops = graph.program.ops
    edges: nx.DiGraph[str] = graph.edges.copy()
    had = edges.number_of_edges()
    ordered: list[Op] = []
    closure: list[int] = []
    for index, op in enumerate(ops):
        known = union(before[index], closure)
        for link in links.get(index, ()):
            if needed(link, index) & ~known and wants_join(link, op, closure, known):
                join, nodes = join_behind(link, op, closure, known)
                edges.add_edges_from((ops[node].name, join.name, BY_JOIN) for node in nodes)
                ordered.append(join)
            if needed(link, index) & ~known and link.join is not None:
                edges.add_edge(link.join, op.name, **BY_JOIN)
                known |= link.before_join
            for node in latest(needed(link, index) & ~known, closure):
                edges.add_edge(ops[node].name, op.name, hazards=hazards_of(link, node, index))
                known |= closure[node] | 1 << node
        ordered.append(op)
        closure.append(known)
    program = replace(graph.program, ops=tuple(ordered))
    return Graph(program, edges), edges.number_of_edges() - had


BY_JOIN = {"hazards": (Hazard.AFTER,)}


def needed(link: Link, index: int) -> int:
    """The ops on the forerunner that conflict with this one: all of them if it writes."""
    return link.old.touching if link.new.writing >> index & 1 else link.old.writing


def union(nodes: Iterable[int], closure: list[int]) -> int:
    result = 0
    for node in nodes:
        result |= closure[node] | 1 << node
    return result


def latest(nodes: int, closure: list[int]) -> list[int]:
    """Those of the nodes that are before none of the others, the last one first."""
    result = []
    covered = 0
    for node in members(nodes):
        if not covered >> node & 1:
            covered |= closure[node]
            result.append(node)
    return result


def wants_join(link: Link, op: Op, closure: list[int], known: int) -> bool:
    """Whether more pieces are likely to wait for as many ops."""
    is_many = op.piece.of > 1 and len(link.new.ops) > 1
    if not is_many or link.join is not None:
        return False
    return len(latest(link.old.touching & ~known, closure)) >= SEVERAL


def join_behind(link: Link, op: Op, closure: list[int], known: int) -> tuple[Op, list[int]]:
    """A join behind all that touches the forerunner, and the ops right before it."""
    nodes = latest(link.old.touching & ~known, closure)
    name = f"join/{op.step}/memory/{link.new.buffer}"
    link.join, link.before_join = name, union(nodes, closure)
    placement = Placement(
        stream=op.placement.stream, priority=op.placement.priority, lane=op.placement.lane
    )
    return Op(name, name, op.device, Join(), (), placement=placement, span=op.span), nodes


def hazards_of(link: Link, one: int, two: int) -> tuple[Hazard, ...]:
    found = {
        Hazard.RAW: link.old.writing >> one & link.new.reading >> two & 1,
        Hazard.WAR: link.old.reading >> one & link.new.writing >> two & 1,
        Hazard.WAW: link.old.writing >> one & link.new.writing >> two & 1,
    }
    return tuple(hazard for hazard, is_there in found.items() if is_there)
