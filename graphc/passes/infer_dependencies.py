"""Program -> Graph: order every pair of operations that touch the same bytes.

One mechanism serves all accesses. Every buffer has an interval map, and each of its cells keeps
the top two *layers* of accesses. Accesses commute, and so share a layer, exactly if they have the
same key: all reads; the pieces and ranks of one op that ``scatter`` by the same argument; calls of
one kernel, alike but for their buffers, that ``accumulate`` on an exact type. Every other write has
a key of its own. A new access with the key of the top layer joins it and waits for all of the layer
below; any other starts a new layer and waits for all of the top one.

Only the nearest dependency is recorded; what follows from it by transitivity is not. Where several
operations wait for the same set, the order goes through a join, so that the number of edges stays
linear. An ``after`` may point at a later step: the program is then put in the order of the edges.

Reading bytes that neither the caller nor an earlier operation has written is a mistake, and so is
a conflict between two pieces or ranks of one op with nothing between them.

Overlays: accesses of two buffers over the same memory conflict by their exact bytes if both are
fixed. If the count governs either, its bytes move with the count, so that the two conflict as
whole buffers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import combinations

import networkx as nx

from graphc.dtypes import dtype
from graphc.ir import (
    Access,
    Buffer,
    Extern,
    Graph,
    Hazard,
    Join,
    Kernel,
    Mode,
    Op,
    Placement,
    Program,
    Role,
)
from graphc.text.diagnostics import Diagnostic, Note, SpecError, error

READS, WRITES = 1, 2  # what a layer does to its bytes
RAW, WAR, WAW, AFTER = 1, 2, 4, 8
HAZARDS = tuple(
    tuple(hazard for bit, hazard in enumerate(Hazard) if mask >> bit & 1) for mask in range(16)
)
# What orders a layer that does `before` in front of an access that does `after`.
HAZARD_OF = tuple(
    tuple(
        RAW * bool(before & WRITES and after & READS)
        | WAR * bool(before & READS and after & WRITES)
        | WAW * bool(before & WRITES and after & WRITES)
        for after in range(4)
    )
    for before in range(4)
)
SEVERAL = 3  # fewer predecessors than this never need a join

Found = dict[int, int]  # the ops that an access waits for -> hazards
Key = tuple[str, object]


def infer_dependencies(program: Program) -> Graph:
    """Add the edge a -> b when b must wait for a, labelled with the hazards.

    >>> from graphc.ir import Copy
    >>> from graphc.regions import Region
    >>> x, y = Region("x", 0, 8), Region("y", 0, 8)
    >>> def copy(name, source, target):
    ...     accesses = Access("source", source, Mode.READ), Access("target", target, Mode.WRITE)
    ...     return Op(name, name, "g0", Copy(), accesses)
    >>> buffers = {name: Buffer(name, "g0", "u8", (8,), role=Role.STATE) for name in "xy"}
    >>> program = Program("p", ("g0",), buffers, (copy("a", x, y), copy("b", y, x)))
    >>> list(infer_dependencies(program).edges.edges(data="hazards"))
    [('a', 'b', (<Hazard.RAW: 'read-after-write'>, <Hazard.WAR: 'write-after-read'>))]
    """
    orders = Orders([{} for _ in program.ops])
    collect_hazards(program, orders)
    collect_after(program, orders)
    joins = orders.settle(program.ops)
    return in_order(program, orders, joins)


# The orders found


@dataclass(frozen=True, slots=True)
class Through:
    """A join that takes the place of all edges from ``before`` to ``users``."""

    label: str
    before: tuple[int, ...]
    users: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Orders:
    """For each op, by its place in the program, the ops that it waits for."""

    before: list[Found]

    def add(self, op: int, found: Found) -> None:
        before = self.before[op]
        for other, hazards in found.items():
            before[other] = before.get(other, 0) | hazards

    def settle(self, ops: Sequence[Op]) -> list[Through]:
        """Put a join wherever it saves edges: between the parts of an op and their users."""
        fans: dict[frozenset[int], list[int]] = {}
        for op, found in enumerate(self.before):
            if len(found) < SEVERAL:
                continue
            by_kin: dict[str, list[int]] = {}
            for other in found:
                by_kin.setdefault(ops[other].kin, []).append(other)
            for several in by_kin.values():
                if len(several) >= SEVERAL:
                    fans.setdefault(frozenset(several), []).append(op)
        joins = []
        for members, users in fans.items():
            if len(users) * len(members) > len(users) + len(members):
                before = tuple(sorted(members))
                joins.append(Through(ops[before[0]].kin, before, tuple(users)))
                for user in users:
                    for member in members:
                        del self.before[user][member]
        return joins


# Hazards


def collect_hazards(program: Program, orders: Orders) -> None:
    places = lay_out(program.buffers)
    exact = {name for name, each in program.buffers.items() if not dtype(each.dtype).is_float}
    mistakes: dict[tuple[str, str, str], Diagnostic] = {}
    ops = program.ops
    found: Found = {}
    for index, op in enumerate(ops):
        # Reads first: an op that reads and writes one region waits for others, not for itself.
        for is_write in (False, True):
            for access in op.accesses:
                region = access.region
                if (access.mode is not Mode.READ) is not is_write or region.start == region.stop:
                    continue
                key, kinds = meaning(op, index, access, region.buffer in exact)
                place = places[region.buffer]
                if not place.note(region.start, region.stop, key, kinds, index, found):
                    refuse_read(op, access, program.buffers[region.buffer], mistakes)
                found.pop(index, None)
                if not found:
                    continue
                for other in found:
                    if ops[other].kin == op.kin:
                        refuse(op, ops[other], access, mistakes)
                orders.add(index, found)
                found.clear()
    if mistakes:
        raise SpecError(mistakes.values())


READ_KEY: Key = ("read", 0)


def meaning(op: Op, index: int, access: Access, is_exact: bool) -> tuple[Key, int]:
    """The key under which an access commutes with others, and what it does to its bytes."""
    match access.mode:
        case Mode.READ:
            return READ_KEY, READS
        case Mode.SCATTER:
            return ("scatter", (op.kin, access.argument, access.region.buffer)), WRITES
        case Mode.ACCUMULATE if is_exact:
            return ("accumulate", (access.region.buffer, way_of(op, access))), READS | WRITES
        case Mode.UPDATE | Mode.ACCUMULATE:
            return ("write", index), READS | WRITES
        case Mode.WRITE | Mode.WRITE_SOME:
            return ("write", index), WRITES


def way_of(op: Op, access: Access) -> object:
    """How an op accumulates: one kernel may add and another take the maximum."""
    match op.work:
        case Kernel(template, _, options, scalars):
            return template, access.argument, sorted_items(options), sorted_items(scalars)
        case Extern(function, reference, scalars):
            return function, reference, access.argument, sorted_items(scalars)
        case _:
            return op.step, access.argument


def sorted_items(values: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple((name, values[name]) for name in sorted(values))


Mistakes = dict[tuple[str, str, str], Diagnostic]


def refuse_read(op: Op, access: Access, buffer: Buffer, mistakes: Mistakes) -> None:
    """Bytes that nobody has written are read."""
    key = op.step, buffer.name, access.argument
    if key not in mistakes:
        mistakes[key] = Diagnostic(
            "unwritten-read",
            f"'{op.step}' reads '{buffer.name}' (argument '{access.argument}', {access.region}), "
            "but nothing has written all of it before",
            access.span if access.span.line else op.span,
            notes=(Note(f"'{buffer.name}' is {buffer.role}, so no caller fills it", buffer.span),),
        )


def refuse(op: Op, other: Op, access: Access, mistakes: Mistakes) -> None:
    """Two pieces or ranks of one op touch the same bytes: its result would hang on their order."""
    parts = "pieces" if op.step == other.step else "ranks"
    key = op.kin, access.region.buffer if parts == "pieces" else "", access.argument
    if key not in mistakes:
        mistakes[key] = Diagnostic(
            "pieces-conflict",
            f"the {parts} of '{op.kin}' conflict: argument '{access.argument}' of '{op.name}' "
            f"({access.mode} {access.region}) meets bytes of '{other.name}'",
            op.span if op.span.line else access.span,
            hint=way_out(access.mode, parts),
        )


def way_out(mode: Mode, parts: str) -> str:
    """What a spec can say instead."""
    match mode:
        case Mode.SCATTER:
            return f"'scatter' keeps {parts} apart within one buffer: let all of them name the same"
        case Mode.ACCUMULATE:
            less = "cut it less: " if parts == "pieces" else ""
            return (
                f"{less}only integers are accumulated in any order, by calls with the same options "
                "and scalars"
            )
        case _ if parts == "pieces":
            return (
                "cut it less, give the argument rows that follow the cut, "
                "or declare 'scatter' if the pieces write disjoint rows"
            )
        case _:
            return (
                "give each rank a row of its own, or declare 'scatter' if the ranks write "
                "disjoint rows"
            )


# Interval maps


@dataclass(slots=True)
class Layer:
    """Accesses that commute, and those below them."""

    key: Key | None
    kinds: int
    members: list[int]
    below: list[int]
    below_kinds: int
    is_written: bool

    def copy(self) -> Layer:
        return replace(self, members=list(self.members))


class Cells:
    """An interval map from bytes to the top layers of their accesses."""

    __slots__ = ("layers", "starts")

    def __init__(self, *, is_written: bool) -> None:
        self.starts = [0]
        self.layers = [Layer(None, 0, [], [], 0, is_written)]

    def cut(self, at: int) -> int:
        """The index of the cell that starts there, made if need be."""
        index = bisect_right(self.starts, at) - 1
        if self.starts[index] == at:
            return index
        self.starts.insert(index + 1, at)
        self.layers.insert(index + 1, self.layers[index].copy())
        return index + 1

    def note(self, start: int, stop: int, key: Key, kinds: int, op: int, found: Found) -> bool:
        """Note an access, and find what it waits for; False if it reads what nobody has written."""
        first, last = self.cut(start), self.cut(stop)
        is_alone, writes, is_written = key[0] == "write", bool(kinds & WRITES), True
        for index in range(first, last):
            top = self.layers[index]
            is_written &= top.is_written
            if top.key == key:
                merge_layer(found, top.below, HAZARD_OF[top.below_kinds][kinds])
                if top.members[-1] != op:
                    top.members.append(op)
                continue
            merge_layer(found, top.members, HAZARD_OF[top.kinds][kinds])
            if not is_alone:
                self.layers[index] = Layer(
                    key, kinds, [op], top.members, top.kinds, top.is_written or writes
                )
        if is_alone:
            # Nothing ever joins a write, so what is below it no longer matters: one cell is enough.
            self.starts[first:last] = [start]
            self.layers[first:last] = [Layer(key, kinds, [op], [], 0, True)]
        return is_written or not kinds & READS


def merge_layer(found: Found, members: Iterable[int], hazards: int) -> None:
    for member in members:
        found[member] = found.get(member, 0) | hazards


class Crossing:
    """Two buffers over the same memory that conflict as wholes: who touched them, side by side."""

    __slots__ = ("last_write", "moment", "noted")

    def __init__(self) -> None:
        self.noted: tuple[list[tuple[int, int, int]], ...] = ([], [])  # (moment, op, kinds)
        self.last_write = [-1, -1]
        self.moment = 0

    def note(self, side: int, kinds: int, op: int, found: Found) -> None:
        for _, other, before in self.noted[1 - side]:
            hazards = HAZARD_OF[before][kinds]
            if hazards:
                found[other] = found.get(other, 0) | hazards
        own = self.noted[side]
        if kinds & WRITES:
            # What came before the other side's last write is ordered before this write, through it.
            own[:] = [each for each in own if each[0] > self.last_write[1 - side]]
            self.last_write[side] = self.moment
        own.append((self.moment, op, kinds))
        self.moment += 1


@dataclass(slots=True)
class Place:
    """Where accesses of a buffer are noted: an interval map, and crossings with other buffers."""

    cells: Cells
    offset: int = 0
    crossings: list[tuple[Crossing, int]] = field(default_factory=list)

    def note(self, start: int, stop: int, key: Key, kinds: int, op: int, found: Found) -> bool:
        """Note an access, and find what it waits for; False if it reads what nobody has written."""
        start, stop = start + self.offset, stop + self.offset
        is_written = self.cells.note(start, stop, key, kinds, op, found)
        for crossing, side in self.crossings:
            crossing.note(side, kinds, op, found)
        return is_written or bool(self.crossings)


FILLED = (Role.INPUT, Role.INOUT, Role.WEIGHT, Role.STATE, Role.STATUS)


def lay_out(buffers: Mapping[str, Buffer]) -> dict[str, Place]:
    """A place for each buffer: fixed overlays share the interval map of their base."""
    places: dict[str, Place] = {}
    bases = {name: resolve(buffers, each) for name, each in buffers.items()}
    filled = {bases[name][0] for name, each in buffers.items() if each.role in FILLED}
    groups: dict[str, list[tuple[int, Buffer]]] = {}
    shared: dict[str, Cells] = {}
    for name, buffer in buffers.items():
        base, offset = bases[name]
        groups.setdefault(base, []).append((offset, buffer))
        cells = Cells(is_written=base in filled)
        if not buffer.per_count:
            cells = shared.setdefault(base, cells)
        places[name] = Place(cells, 0 if buffer.per_count else offset)
    for group in groups.values():
        for (one_start, one), (two_start, two) in combinations(group, 2):
            meet = one_start < two_start + two.nbytes and two_start < one_start + one.nbytes
            if meet and (one.per_count or two.per_count):
                crossing = Crossing()
                places[one.name].crossings.append((crossing, 0))
                places[two.name].crossings.append((crossing, 1))
    return places


def resolve(buffers: Mapping[str, Buffer], buffer: Buffer) -> tuple[str, int]:
    """The buffer whose bytes these are in the end, and from which byte on."""
    offset = 0
    while buffer.overlay is not None:
        offset += buffer.overlay[1]
        buffer = buffers[buffer.overlay[0]]
    return buffer.name, offset


# `after`


def collect_after(program: Program, orders: Orders) -> None:
    asking = [index for index, op in enumerate(program.ops) if op.placement.after]
    if not asking:
        return
    by_prefix: dict[str, list[int]] = {}
    for index, op in enumerate(program.ops):
        parts = op.step.split("/")
        for depth in range(1, len(parts) + 1):
            by_prefix.setdefault("/".join(parts[:depth]), []).append(index)
    for index in asking:
        op = program.ops[index]
        for name in op.placement.after:
            members = by_prefix.get(name, ())
            found = {each: AFTER for each in members if program.ops[each].step != op.step}
            orders.add(index, found)


# Program order, joins included


def in_order(program: Program, orders: Orders, joins: list[Through]) -> Graph:
    """The graph, with the joins in the program, each right before its first user."""
    names: dict[str, int] = {}
    ops = list(program.ops)
    before = orders.before
    ahead: dict[int, list[int]] = {}  # first user -> its joins
    for join in joins:
        node = len(ops)
        ops.append(join_op(ops[join.users[0]], join.label, names))
        before.append(dict.fromkeys(join.before, AFTER))
        ahead.setdefault(join.users[0], []).append(node)
        for user in join.users:
            before[user][node] = AFTER
    order = [node for index in range(len(program.ops)) for node in (*ahead.get(index, ()), index)]
    if program_asks_ahead(before, order):
        order = sorted_by_edges(ops, before, order)
    edges: nx.DiGraph[str] = nx.DiGraph()
    edges.add_nodes_from(ops[node].name for node in order)
    edges.add_edges_from(
        (ops[other].name, ops[node].name, {"hazards": HAZARDS[before[node][other]]})
        for node in order
        for other in sorted(before[node])
    )
    return Graph(replace(program, ops=tuple(ops[node] for node in order)), edges)


def join_op(user: Op, label: str, names: dict[str, int]) -> Op:
    """A join before its first user, named after it and the op before, laid where it lies."""
    name = f"join/{user.kin}/{label}"
    names[name] = names.get(name, 0) + 1
    if names[name] > 1:
        name = f"{name}/{names[name]}"
    placement = Placement(
        stream=user.placement.stream, priority=user.placement.priority, lane=user.placement.lane
    )
    return Op(name, name, user.device, Join(), (), placement=placement, span=user.span)


def program_asks_ahead(before: list[Found], order: list[int]) -> bool:
    position = {node: place for place, node in enumerate(order)}
    return any(position[other] > position[node] for node in order for other in before[node])


def sorted_by_edges(ops: list[Op], before: list[Found], order: list[int]) -> list[int]:
    """The order of the edges that is nearest to program order; a ``SpecError`` if there is none."""
    position = {node: place for place, node in enumerate(order)}
    missing = {node: len(before[node]) for node in order}
    followers: dict[int, list[int]] = {}
    for node in order:
        for other in before[node]:
            followers.setdefault(other, []).append(node)
    ready = [position[node] for node in order if not missing[node]]
    result = []
    while ready:
        node = order[heappop(ready)]
        result.append(node)
        for follower in followers.get(node, ()):
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, position[follower])
    if len(result) < len(order):
        stuck = [ops[node] for node in order if missing[node]]
        op = next((each for each in stuck if each.placement.after), stuck[0])
        raise error(
            "after-cycle",
            f"'{op.step}' cannot come after '{', '.join(op.placement.after)}', "
            "which needs what it does",
            op.span,
        )
    return result
