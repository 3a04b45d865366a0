"""Placed -> Placed: divide a schedule into units, which signal each other.

    gpu0: a              gpu0: gpu0/begin -> a -> signal/a
    gpu1: b    becomes                              :          (a -> b: the only cut edge)
                         gpu1: gpu1/begin -> await/b -> b

An edge from one unit to another is *cut*: the op it comes from signals, the op it leads to awaits.
There is one signal for an op, to all units that need it, and one await in front of an op, for all
of its signals. What follows from other orders is not cut: the order of all ops is reduced over all
units, while edges within a unit stay as they are.

A join between units falls apart: in each unit it keeps what it orders there. From one unit to
another it becomes a signal behind all that it follows in the one, to what follows it in the other.
So an order of all units with all others takes one signal a unit.

Streams order, too, unless the graph is made of its edges alone (``emit: nodes``). Then an await may
serve several ops.

``launch: free`` lets the caller of each unit write the inputs on its devices before the unit begins
and read the outputs there after it has ended. What other units do with these buffers comes after
the beginning and before the end: an await that nothing follows ends the unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.ir import (
    Access,
    Awaited,
    Begin,
    Buffer,
    Emit,
    Hazard,
    Join,
    LaunchContract,
    Op,
    Placed,
    Program,
    Role,
    Settings,
    Stream,
    Unit,
)
from graphc.passes.amend import (
    AFTER,
    Amendment,
    Edge,
    amend,
    await_op,
    side_streams,
    signal_op,
    union,
)
from graphc.passes.closure import NOTHING, History, grown, joined, knows
from graphc.passes.find_units import unit_numbers
from graphc.passes.keep_progress import keep_progress

ACROSS = -1  # the unit of a join that leads from one unit to another
Source = tuple[int, ...]  # ops of one unit that signal together


def divide(placed: Placed, units: tuple[Unit, ...], settings: Settings) -> Placed:
    """The schedule with a beginning for each unit, and the fewest signals between them."""
    if not units:
        return placed
    units = tuple(replace(unit, origin=origin_of(placed, unit)) for unit in units)
    by_streams = settings.emit is not Emit.NODES
    whole = Whole(placed, units, by_streams, settings.launch is LaunchContract.FREE)
    cuts = {node: whole.cut(node) for node in whole.targets()}
    divided = replace(
        amend(placed, Parts(whole, cuts).amendment(), without=whole.gone), units=units
    )
    return keep_progress(divided, by_streams=by_streams)


def origin_of(placed: Placed, unit: Unit) -> str:
    """Where a unit begins: its first stream, which is one of compute if there is any."""
    streams = (each.name for each in placed.streams if each.device in unit.devices)
    return next(streams, f"{unit.devices[0]}.0")


# The order of all


class Whole:
    """All that is ordered before the schedule is divided.

    Nodes are numbers: a beginning for each unit, the ops in order of issue, an end for each unit.
    """

    def __init__(
        self, placed: Placed, units: tuple[Unit, ...], by_streams: bool, is_free: bool
    ) -> None:
        self.placed, self.units, self.by_streams = placed, units, by_streams
        program = placed.graph.program
        self.entry = program.entry
        unit_of = unit_numbers(units)
        by_name = {op.name: op for op in program.ops}
        begins = [begin_op(unit) for unit in units]
        self.ops = [*begins, *(by_name[name] for name in placed.order)]
        self.place = {op.name: node for node, op in enumerate(self.ops)}
        pred, succ = placed.graph.edges.pred, placed.graph.edges.succ
        self.unit = [unit_of[op.device] for op in self.ops]
        for node, op in enumerate(self.ops):
            if isinstance(op.work, Join):
                beside = (by_name[name] for name in (*pred[op.name], *succ[op.name]))
                if leads_across(beside, unit_of):
                    self.unit[node] = ACROSS
        self.gone = frozenset(
            op.name for op, unit in zip(self.ops, self.unit, strict=True) if unit == ACROSS
        )
        self.edges = [
            [self.place[other] for other in pred[op.name]] if node >= len(units) else []
            for node, op in enumerate(self.ops)
        ]
        visits = Visits(program, unit_of) if is_free else None
        self.guests: list[list[int]] = [[] for _ in units]  # unit -> ops that its end comes after
        self.closure: list[History] = []
        self.stream_before: list[int | None] = []  # the op before on the stream
        self.parts: dict[int, dict[int, Source]] = {}  # join across -> unit -> ops before it there
        self.follow(visits)

    def follow(self, visits: Visits | None) -> None:
        """What is before each node."""
        tails: dict[str, int] = {}
        for node, op in enumerate(self.ops):
            before = None
            if self.by_streams and node >= len(self.units) and self.unit[node] != ACROSS:
                stream = self.placed.stream_of[op.name]
                before = tails.get(stream)
                tails[stream] = node
            self.stream_before.append(before)
            if visits is not None and node >= len(self.units):
                for unit in visits.of(op):
                    self.edges[node].append(unit)
                    self.guests[unit].append(node)
            known = union(self.closure[other] for other in self.edges[node])
            if before is not None:
                known = joined(known, self.closure[before])
            if node >= len(self.units) and self.unit[node] != ACROSS:
                known = joined(known, self.closure[self.unit[node]])
            self.closure.append(grown(known, node))
            if self.unit[node] == ACROSS:
                self.parts[node] = self.split(node)

    def split(self, join: int) -> dict[int, Source]:
        """The ops before a join by unit, without those that come before others of them."""
        members: set[int] = set()
        for other in self.edges[join]:
            if self.unit[other] == ACROSS:
                members.update(each for part in self.parts[other].values() for each in part)
            else:
                members.add(other)
        found: dict[int, list[int]] = {}
        known: dict[int, History] = {}
        for node in sorted(members, reverse=True):
            unit = self.unit[node]
            if not knows(known.get(unit, NOTHING), node):
                found.setdefault(unit, []).append(node)
                known[unit] = joined(known.get(unit, NOTHING), self.closure[node])
        return {unit: tuple(reversed(nodes)) for unit, nodes in found.items()}

    # What is cut

    def targets(self) -> Iterator[int]:
        """Ops that may have to wait for other units, and the ends of units that have guests."""
        for node in range(len(self.units), len(self.ops)):
            if self.unit[node] != ACROSS and self.sources(node):
                yield node
        for unit, guests in enumerate(self.guests):
            if guests:
                yield self.end(unit)

    def end(self, unit: int) -> int:
        return len(self.ops) + unit

    def unit_at(self, node: int) -> int:
        return self.unit[node] if node < len(self.ops) else node - len(self.ops)

    def within(self, node: int) -> list[int]:
        """What leads to a node within its unit, joins across as the ops before them."""
        unit, before = self.unit[node], self.stream_before[node]
        found = [] if before is None else [before]
        for other in self.edges[node]:
            if self.unit[other] == unit:
                found.append(other)
            elif self.unit[other] == ACROSS:
                found += self.parts[other].get(unit, ())
        return [*found, unit]

    def sources(self, node: int) -> dict[Source, str]:
        """Ops of other units that an op waits for, those before a join together; and their name."""
        found: dict[Source, str] = {}
        for other in self.edges[node]:
            if self.unit[other] == ACROSS:
                for unit, part in self.parts[other].items():
                    if unit != self.unit[node]:
                        label = f"{self.ops[other].name}/{self.units[unit].name}"
                        found.setdefault(part, label if len(part) > 1 else self.ops[part[0]].name)
            elif self.unit[other] != self.unit[node]:
                found[other,] = self.ops[other].name
        return found

    def cut(self, node: int) -> dict[Source, str]:
        """The fewest sources from which, with what is before in the unit, all others follow."""
        if node < len(self.ops):
            sources = self.sources(node)
            base = union(self.closure[other] for other in self.within(node))
        else:
            unit = self.unit_at(node)
            sources = {(guest,): self.ops[guest].name for guest in self.guests[unit]}
            base = union(
                known for each, known in zip(self.unit, self.closure, strict=True) if each == unit
            )
        kept: list[Source] = []
        known = base
        for source in sorted(sources, key=lambda each: (each[-1], len(each)), reverse=True):
            if not all(knows(known, other) for other in source):
                kept.append(source)
                known = joined(known, self.after(source))
        if any(len(source) > 1 for source in kept):
            kept = self.needed(kept, base)
        return {source: sources[source] for source in sorted(kept)}

    def needed(self, sources: list[Source], base: History) -> list[Source]:
        """The sources without those that the others tell of together."""
        for source in sorted(sources):
            known = joined(base, union(self.after(each) for each in sources if each != source))
            if all(knows(known, other) for other in source):
                sources = [each for each in sources if each != source]
        return sources

    def after(self, source: Source) -> History:
        return union(self.closure[other] for other in source)


def begin_op(unit: Unit) -> Op:
    name = f"{unit.name}/begin"
    return Op(name, name, unit.devices[0], Begin(), ())


CALLERS = (Role.INPUT, Role.OUTPUT, Role.INOUT, Role.WEIGHT)


def leads_across(neighbours: Iterable[Op], unit_of: Mapping[str, int]) -> bool:
    """Whether a join has to fall apart; those that meet other joins are taken apart, too."""
    found = tuple(neighbours)
    is_chained = any(isinstance(op.work, Join) for op in found)
    return is_chained or len({unit_of[op.device] for op in found}) > 1


# What the caller of another unit touches


@dataclass(frozen=True, slots=True)
class Owned:
    """A buffer that the caller of a unit fills before a launch, or looks at afterwards."""

    buffer: Buffer
    unit: int
    start: int  # in the buffer whose bytes these are in the end
    stop: int


class Visits:
    """Which ops touch what lies on another unit's devices and is its caller's between launches."""

    def __init__(self, program: Program, unit_of: Mapping[str, int]) -> None:
        self.buffers, self.unit_of = program.buffers, unit_of
        self.owned: dict[str, list[Owned]] = {}
        for name, buffer in self.buffers.items():
            if buffer.device in unit_of and buffer.role in CALLERS:
                base, start = self.base(name)
                stop = start + buffer.nominal_rows(program.nominal) * buffer.row_nbytes
                owned = Owned(buffer, unit_of[buffer.device], start, stop)
                self.owned.setdefault(base, []).append(owned)

    def base(self, name: str) -> tuple[str, int]:
        """The buffer whose bytes these are in the end, and from which byte on."""
        offset = 0
        while (overlay := self.buffers[name].overlay) is not None:
            name, offset = overlay[0], offset + overlay[1]
        return name, offset

    def of(self, op: Op) -> list[int]:
        """The other units that must have begun before the op, and end after it."""
        found = {
            owned.unit
            for access in op.accesses
            for owned in self.owned.get(self.base(access.region.buffer)[0], ())
            if owned.unit != self.unit_of[op.device] and self.meet(access, owned)
        }
        return sorted(found)

    def meet(self, access: Access, owned: Owned) -> bool:
        """Whether an access conflicts with what the caller does to a buffer."""
        region, other = access.region, owned.buffer
        if region.start == region.stop or (other.role is Role.OUTPUT and not access.mode.is_write):
            return False
        buffer = self.buffers[region.buffer]
        start, stop = region.start, region.stop
        if buffer.name != other.name and (buffer.per_count or other.per_count):
            start, stop = 0, buffer.nbytes  # bytes that move with the count
        offset = self.base(buffer.name)[1]
        return offset + start < owned.stop and owned.start < offset + stop


# The parts


class Parts:
    """What takes the place of the edges that are cut."""

    def __init__(self, whole: Whole, cuts: Mapping[int, Mapping[Source, str]]) -> None:
        self.whole, self.cuts = whole, cuts
        self.before: dict[int, list[Op]] = {}  # what stands next to a node
        self.behind: dict[int, list[Op]] = {}
        self.stream_of: dict[str, str] = {}
        self.edges: list[Edge] = []
        self.streams: list[Stream] = []
        self.first: list[Op] = []
        self.last: list[Op] = []
        self.labels: dict[Source, str] = {}  # what signals, by name

    def amendment(self) -> Amendment:
        self.add_begins()
        self.add_signals()
        self.add_joins()
        self.add_awaits()
        self.add_roots()
        return Amendment(
            self.laid(self.before),
            self.laid(self.behind),
            self.stream_of,
            tuple(self.streams),
            tuple(self.edges),
            tuple(self.first),
            tuple(self.last),
        )

    def laid(self, beside: Mapping[int, Sequence[Op]]) -> dict[str, Sequence[Op]]:
        return {self.whole.ops[node].name: ops for node, ops in beside.items()}

    def add_begins(self) -> None:
        streams = {each.name for each in self.whole.placed.streams}
        for place, unit in enumerate(self.whole.units):
            op = self.whole.ops[place]
            self.first.append(op)
            self.stream_of[op.name] = unit.origin
            if unit.origin not in streams:
                self.streams.append(Stream(unit.origin, unit.devices[0]))

    def add_signals(self) -> None:
        whole = self.whole
        wanted: dict[Source, tuple[str, set[int]]] = {}
        for node, sources in self.cuts.items():
            for source, label in sources.items():
                wanted.setdefault(source, (label, set()))[1].add(whole.unit_at(node))
        side = side_streams(whole.placed, "signal")
        for source in sorted(wanted, key=lambda each: each[::-1]):
            label, units = wanted[source]
            to = tuple(whole.units[unit].name for unit in sorted(units))
            last = whole.ops[source[-1]]
            op = signal_op(f"signal/{label}", f"{whole.entry}/{label}", to, last)
            self.labels[source] = label
            if source[-1] < len(whole.units):
                self.first.append(op)
            else:
                self.behind.setdefault(source[-1], []).append(op)
            self.stream_of[op.name] = side.choose(op.device, source, whole.after(source))
            self.edges += ((whole.ops[node].name, op.name, AFTER) for node in source)
        self.streams += side.made

    def add_joins(self) -> None:
        """What joins across order within each unit: by a join of its own, if that saves edges."""
        whole = self.whole
        for node, parts in whole.parts.items():
            join = whole.ops[node]
            users = [whole.place[name] for name in whole.placed.graph.edges.succ[join.name]]
            for unit, members in parts.items():
                here = [user for user in users if whole.unit[user] == unit]
                if len(members) > 1 and len(here) > 1:
                    self.add_join(join, unit, members, here)
                else:
                    self.edges += (
                        (whole.ops[member].name, whole.ops[user].name, AFTER)
                        for member in members
                        for user in here
                    )

    def add_join(self, join: Op, unit: int, members: Source, users: list[int]) -> None:
        whole = self.whole
        name = f"{join.name}/{whole.units[unit].name}"
        op = replace(join, name=name, step=name, device=whole.units[unit].devices[0])
        self.before.setdefault(min(users), []).append(op)
        self.stream_of[name] = self.stream_at(min(users))
        self.edges += ((whole.ops[member].name, name, AFTER) for member in members)
        self.edges += ((name, whole.ops[user].name, AFTER) for user in users)

    def stream_at(self, node: int) -> str:
        return self.whole.placed.stream_of[self.whole.ops[node].name]

    def add_awaits(self) -> None:
        """One for each op that awaits; for several, if streams do not order what comes behind."""
        whole = self.whole
        together: dict[tuple[int, tuple[Source, ...], int], list[int]] = {}
        for node, sources in self.cuts.items():
            if sources:
                alone = node if whole.by_streams or node >= len(whole.ops) else 0
                key = whole.unit_at(node), tuple(sources), alone
                together.setdefault(key, []).append(node)
        for (unit, parts, _), nodes in together.items():
            awaited = tuple(
                Awaited(f"{whole.entry}/{self.labels[each]}", self.unit_name(each), whole.entry)
                for each in parts
            )
            if nodes[0] >= len(whole.ops):
                name = f"{whole.units[unit].name}/end"
                end = Op(name, name, whole.units[unit].devices[0], Join(), ())
                op = await_op(f"await/{name}", awaited, end)
                self.last.append(op)
                self.stream_of[op.name] = whole.units[unit].origin
            else:
                first = whole.ops[min(nodes)]
                op = await_op(f"await/{first.name}", awaited, first)
                self.before.setdefault(min(nodes), []).append(op)
                self.stream_of[op.name] = self.stream_at(min(nodes))
                self.edges += ((op.name, whole.ops[node].name, AFTER) for node in nodes)
            self.edges += (
                (f"signal/{self.labels[each]}", op.name, (Hazard.SIGNAL,)) for each in parts
            )

    def unit_name(self, source: Source) -> str:
        return self.whole.units[self.whole.unit[source[0]]].name

    def add_roots(self) -> None:
        """Everything in a unit comes after its beginning."""
        whole = self.whole
        unit_of = unit_numbers(whole.units)
        new = [op for each in (*self.before.values(), *self.behind.values()) for op in each]
        ops = (*whole.ops, *self.first, *new, *self.last)
        units = {op.name: unit_of[op.device] for op in ops}
        edges = whole.placed.graph.edges.edges
        led = {
            two
            for one, two in (*edges, *((one, two) for one, two, _ in self.edges))
            if units[one] == units[two] and one not in whole.gone
        }
        self.edges += (
            (whole.ops[unit].name, name, AFTER)
            for name, unit in units.items()
            if name not in led and name not in whole.gone and name != whole.ops[unit].name
        )
