"""Placed, of all entries -> Placed: the orders from one launch to the next that no unit gives.

Launched freely, each unit is on a stream of its own: it may begin a launch while another is still
at the one before. A hazard from an op of one launch to an op of the next is *covered* if some unit
is reached by the one and reaches the other: that unit runs its launches one after the other.

    prepare, launch k:      gpu0: read y          no unit that the read reaches leads to the write:
    prepare, launch k + 1:  gpu1: write y         gpu0 signals behind the read, gpu1 awaits the
                                                  signal of the launch before in front of the write

Of the pairs that are not covered, those count that no other one implies: one whose first op comes
no earlier, and whose second op comes no later. They are the fewest that there can be.

Hazards are those of physical bytes, between all entries: of each byte, only what was done to it
last in a launch and what is done to it first in one matters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import lcm

from graphc.dtypes import dtype
from graphc.ir import Await, Awaited, Buffer, Emit, Memory, Op, Placed, Settings
from graphc.passes.amend import AFTER, Amendment, Edge, amend, await_op, side_streams, signal_op
from graphc.passes.closure import NOTHING, histories, issued_before, joined, knows
from graphc.passes.find_units import unit_numbers
from graphc.passes.infer_dependencies import WRITES, Key, meaning

Ops = tuple[int, ...]
Pair = tuple[int, int]  # an op of one launch, and one of a later launch that has to wait for it
ACROSS_LAUNCHES = ("read", "accumulate")  # accesses that commute with those of another launch, too


def find_handshakes(
    entries: Sequence[Placed], memories: Sequence[Memory], settings: Settings
) -> tuple[Placed, ...]:
    """The schedules of all entries with signals to, and awaits of, the launch before."""
    if not any(placed.units for placed in entries):
        return tuple(entries)
    nominal = lcm(*(placed.graph.program.nominal for placed in entries))
    by_streams = settings.emit is not Emit.NODES
    launches = [
        Launch(placed, memory, nominal, by_streams=by_streams)
        for placed, memory in zip(entries, memories, strict=True)
    ]
    spaces = shared_spaces(launches)
    for launch in launches:
        launch.note(spaces)
    shaken = [Shaken(launch) for launch in launches]
    for one, two in product(shaken, shaken):
        for pair in undominated(uncovered(one.launch, two.launch), one.launch, two.launch):
            one.signals.setdefault(pair[0], set()).add(two.launch.units[pair[1]])
            two.awaits.setdefault(pair[1], []).append((one.launch, pair[0]))
    return tuple(each.placed() for each in shaken)


# What a launch does


class Launch:
    """An entry: its ops in order of issue, what they reach, and how it leaves and finds memory."""

    def __init__(self, placed: Placed, memory: Memory, nominal: int, *, by_streams: bool) -> None:
        program = placed.graph.program
        self.placed, self.slots, self.entry = placed, memory.slots, program.entry
        self.buffers = program.buffers
        self.scale = nominal // program.nominal
        self.by_name = {op.name: op for op in program.ops}
        self.ops = [self.by_name[name] for name in placed.order]
        numbers = unit_numbers(placed.units)
        self.units = [numbers[op.device] for op in self.ops]
        before = issued_before(placed, by_streams=by_streams)
        self.closure = histories(before)
        self.up = [1 << unit for unit in self.units]  # the units that reach an op
        self.down = list(self.up)  # those that it reaches
        for node, nodes in enumerate(before):
            for other in nodes:
                self.up[node] |= self.up[other]
        for node in reversed(range(len(before))):
            for other in before[node]:
                self.down[other] |= self.down[node]
        self.cells: dict[Space, Cells] = {}
        self.crossing: Mapping[str, frozenset[str]] = {}  # buffers that meet others as wholes
        self.touched: dict[str, list[tuple[int, int]]] = {}  # one of these -> (op, kinds)

    def signal_name(self, node: int) -> str:
        return f"{self.entry}/{self.ops[node].name}.previous"

    def touching(self) -> Iterator[tuple[int, str]]:
        """The ops and the buffers that they touch."""
        for node, op in enumerate(self.ops):
            for access in op.accesses:
                if access.region.start < access.region.stop:
                    yield node, access.region.buffer

    def note(self, spaces: Spaces) -> None:
        """Note who is the last and who the first to touch what units share."""
        exact = {name for name, each in self.buffers.items() if not dtype(each.dtype).is_float}
        self.crossing = spaces.crossing
        for node, op in enumerate(self.ops):
            for access in op.accesses:
                region, name = access.region, access.region.buffer
                if region.start == region.stop or self.slots[name].allocation not in spaces.shared:
                    continue
                key, kinds = meaning(op, node, access, name in exact)
                space, offset, scale = self.place(self.buffers[name])
                start, stop = offset + scale * region.start, offset + scale * region.stop
                self.cells.setdefault(space, Cells()).note(start, stop, key, node)
                if name in spaces.crossing:
                    self.touched.setdefault(name, []).append((node, kinds))

    def place(self, buffer: Buffer) -> tuple[Space, int, int]:
        """Where bytes of a buffer are compared with others: those that the count moves apart."""
        slot = self.slots[buffer.name]
        if buffer.per_count:
            return (slot.allocation, buffer.name), 0, self.scale
        return (slot.allocation, ""), slot.offset, 1


Space = tuple[str, str]  # an allocation, and the buffer whose bytes the count moves, if any


@dataclass(frozen=True, slots=True)
class Spaces:
    """Memory that several units touch."""

    shared: frozenset[str]  # allocations
    crossing: Mapping[str, frozenset[str]]  # buffers that meet others as wholes -> these


def shared_spaces(launches: Sequence[Launch]) -> Spaces:
    units: dict[str, set[int]] = {}
    places: dict[str, dict[str, tuple[int, int, bool]]] = {}  # allocation -> buffer -> bytes
    for launch in launches:
        for node, name in launch.touching():
            slot, buffer = launch.slots[name], launch.buffers[name]
            units.setdefault(slot.allocation, set()).add(launch.units[node])
            place = slot.offset, slot.offset + buffer.nbytes, bool(buffer.per_count)
            places.setdefault(slot.allocation, {})[name] = place
    shared = frozenset(name for name, each in units.items() if len(each) > 1)
    crossing: dict[str, set[str]] = {}
    for allocation in shared:
        for (one, here), (two, there) in product(places[allocation].items(), repeat=2):
            meet = here[0] < there[1] and there[0] < here[1]
            if one != two and meet and (here[2] or there[2]):
                crossing.setdefault(one, set()).add(two)
    return Spaces(shared, {name: frozenset(each) for name, each in crossing.items()})


# Interval maps


@dataclass(slots=True)
class Layer:
    """Accesses to some bytes that commute."""

    key: Key
    ops: list[int]


@dataclass(slots=True)
class Cell:
    """What was done to some bytes: the first two and the last two layers."""

    first: list[Layer] = field(default_factory=list)
    last: list[Layer] = field(default_factory=list)

    def copy(self) -> Cell:
        layers = {id(each): replace(each, ops=list(each.ops)) for each in (*self.first, *self.last)}
        return Cell(
            [layers[id(each)] for each in self.first], [layers[id(each)] for each in self.last]
        )

    def note(self, key: Key, op: int) -> None:
        if self.last and self.last[-1].key == key:
            if self.last[-1].ops[-1] != op:
                self.last[-1].ops.append(op)
            return
        layer = Layer(key, [op])
        if len(self.first) < 2:
            self.first.append(layer)
        self.last = [*self.last[-1:], layer]


class Cells:
    """An interval map from bytes to what was done to them."""

    __slots__ = ("cells", "starts")

    def __init__(self) -> None:
        self.starts = [0]
        self.cells = [Cell()]

    def cut(self, at: int) -> int:
        """The index of the cell that starts there, made if need be."""
        index = bisect_right(self.starts, at) - 1
        if self.starts[index] == at:
            return index
        self.starts.insert(index + 1, at)
        self.cells.insert(index + 1, self.cells[index].copy())
        return index + 1

    def note(self, start: int, stop: int, key: Key, op: int) -> None:
        first, last = self.cut(start), self.cut(stop)
        for index in range(first, last):
            self.cells[index].note(key, op)

    def beside(self, other: Cells) -> Iterator[tuple[Cell, Cell]]:
        """The cells of two maps that meet."""
        for start in sorted({*self.starts, *other.starts}):
            yield (
                self.cells[bisect_right(self.starts, start) - 1],
                other.cells[bisect_right(other.starts, start) - 1],
            )


# Pairs


def uncovered(one: Launch, two: Launch) -> dict[int, set[int]]:
    """Ops of a launch -> ops of a later one with a hazard that no unit covers."""
    found: dict[int, set[int]] = {}
    for befores, afters in dict.fromkeys((*hazards(one, two), *crossings(one, two))):
        firsts = earliest(afters, two)
        for before in latest(befores, one):
            for after in firsts:
                if not one.down[before] & two.up[after]:
                    found.setdefault(before, set()).add(after)
    return found


def hazards(one: Launch, two: Launch) -> Iterator[tuple[Ops, Ops]]:
    """Ops that were the last to touch some bytes, and those that are the first to do so next."""
    for space, cells in one.cells.items():
        if space not in two.cells:
            continue
        for old, new in cells.beside(two.cells[space]):
            if not old.last or not new.first:
                continue
            if old.last[-1].key != new.first[0].key or new.first[0].key[0] not in ACROSS_LAUNCHES:
                yield tuple(old.last[-1].ops), tuple(new.first[0].ops)
                continue
            if len(old.last) > 1:
                yield tuple(old.last[0].ops), tuple(new.first[0].ops)
            if len(new.first) > 1:
                yield tuple(old.last[-1].ops), tuple(new.first[1].ops)


def crossings(one: Launch, two: Launch) -> Iterator[tuple[Ops, Ops]]:
    """Ops that touch buffers which meet as wholes, and of which one writes."""
    for name, touches in one.touched.items():
        for other, later in two.touched.items():
            if other in one.crossing[name]:
                yield writers(touches), everyone(later)
                yield everyone(touches), writers(later)


def everyone(touches: Sequence[tuple[int, int]]) -> Ops:
    return tuple(dict.fromkeys(node for node, _ in touches))


def writers(touches: Sequence[tuple[int, int]]) -> Ops:
    return tuple(dict.fromkeys(node for node, kinds in touches if kinds & WRITES))


def latest(nodes: Iterable[int], launch: Launch) -> list[int]:
    """Those that come before none of the others."""
    found, known = [], NOTHING
    for node in sorted(nodes, reverse=True):
        if not knows(known, node):
            found.append(node)
            known = joined(known, launch.closure[node])
    return found


def earliest(nodes: Iterable[int], launch: Launch) -> list[int]:
    """Those that come after none of the others."""
    found: list[int] = []
    for node in sorted(nodes):
        if not any(knows(launch.closure[node], other) for other in found):
            found.append(node)
    return found


def undominated(pairs: Mapping[int, set[int]], one: Launch, two: Launch) -> list[Pair]:
    """The pairs that no other implies: from an op no earlier, to an op no later."""
    afters = sorted({after for each in pairs.values() for after in each})
    bits = {after: 1 << place for place, after in enumerate(afters)}
    no_later = {
        after: sum(bits[other] for other in afters if knows(two.closure[after], other))
        for after in afters
    }
    own = {before: sum(bits[after] for after in each) for before, each in pairs.items()}
    found = []
    for before, each in sorted(pairs.items()):
        behind = 0
        for other, reached in own.items():
            if other != before and knows(one.closure[other], before):
                behind |= reached
        found += [
            (before, after)
            for after in sorted(each)
            if not no_later[after] & (behind | own[before] & ~bits[after])
        ]
    return found


# What is put in


@dataclass(slots=True)
class Shaken:
    """An entry with the handshakes that its ops take part in."""

    launch: Launch
    signals: dict[int, set[int]] = field(default_factory=dict)  # op -> units that await it
    awaits: dict[int, list[tuple[Launch, int]]] = field(default_factory=dict)  # op -> ops awaited

    def placed(self) -> Placed:
        placed = self.launch.placed
        if not self.signals and not self.awaits:
            return placed
        before: dict[str, list[Op]] = {}
        behind: dict[str, list[Op]] = {}
        edges: list[Edge] = []
        stream_of: dict[str, str] = {}
        instead: dict[str, Op] = {}
        side = side_streams(placed, "previous")
        for node in sorted(self.signals):
            op, signal = self.launch.ops[node], self.signal(node)
            behind[op.name] = [signal]
            edges.append((op.name, signal.name, AFTER))
            stream_of[signal.name] = side.choose(op.device, (node,), self.launch.closure[node])
        for node in sorted(self.awaits):
            op, awaited = self.launch.ops[node], self.awaited(node)
            own = self.own_await(op)
            if own is not None and isinstance(own.work, Await):
                instead[own.name] = replace(own, work=Await(own.work.signals + awaited))
                continue
            more = await_op(f"await/{op.name}.previous", awaited, op)
            before[op.name] = [more]
            edges.append((f"{self.unit_name(node)}/begin", more.name, AFTER))
            edges.append((more.name, op.name, AFTER))
            stream_of[more.name] = placed.stream_of[op.name]
        more_streams, more_edges = tuple(side.made), tuple(edges)
        return amend(
            placed,
            Amendment(before, behind, stream_of, more_streams, more_edges, instead=instead),
        )

    def signal(self, node: int) -> Op:
        op = self.launch.ops[node]
        names = self.launch.placed.units
        to = tuple(names[unit].name for unit in sorted(self.signals[node]))
        return signal_op(f"signal/{op.name}.previous", self.launch.signal_name(node), to, op)

    def awaited(self, node: int) -> tuple[Awaited, ...]:
        return tuple(
            Awaited(
                launch.signal_name(before),
                launch.placed.units[launch.units[before]].name,
                launch.entry,
                is_handshake=True,
            )
            for launch, before in self.awaits[node]
        )

    def own_await(self, op: Op) -> Op | None:
        """The await in front of an op that serves no other."""
        edges = self.launch.placed.graph.edges
        for name in edges.pred[op.name]:
            before = self.launch.by_name[name]
            if isinstance(before.work, Await) and len(edges.succ[name]) == 1:
                return before
        return None

    def unit_name(self, node: int) -> str:
        return self.launch.placed.units[self.launch.units[node]].name
