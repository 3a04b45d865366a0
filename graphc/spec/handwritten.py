"""Hand-written schedule -> Schedule: what its author issues, in order, and nothing added.

    schedule:
      streams: {cs: primary, ps: peer}
      issue:
        - for: {i: pieces}
          do:
            - cs: ["down[i]", {record: "ev[i]"}]
            - ps: [{wait: "ev[i]"}, "up[i]"]
        - cs: [{sync: host}]
        - host: [group]

``down[i]`` is piece ``i`` of as many as the loop has rounds; ``x/split`` in what it touches is that
piece of the rows of ``x``. An event may be recorded again; a wait means its latest record issued
before. Ops declare what they touch and no more, so the schedule is proven, not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from graphc.ir import (
    ALL,
    HOST,
    MAPPED,
    SPLIT,
    WHOLE,
    Access,
    Allocation,
    Axis,
    Buffer,
    Instruction,
    Memory,
    Mode,
    Op,
    Opaque,
    Piece,
    Program,
    Record,
    Run,
    Schedule,
    Slot,
    Stream,
    Sync,
    Wait,
)
from graphc.regions import Region
from graphc.spec.buffers import Buffers, with_users
from graphc.spec.devices import known_device
from graphc.spec.expand import Declared
from graphc.spec.faults import Faults
from graphc.spec.flow import check_flow
from graphc.spec.model import HandSpec, OpaqueSpec
from graphc.spec.names import NAME, why_no_index
from graphc.spec.values import holds
from graphc.text.diagnostics import Note, Span, error
from graphc.text.expr import check_expression, evaluate, evaluate_count
from graphc.text.load import Site, kind
from graphc.text.suggest import did_you_mean

INDEXED = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)(?:\[([^\[\]]+)\])?")
MOST_INSTRUCTIONS = 100_000
ACCESSES = (("reads", Mode.READ), ("writes", Mode.WRITE), ("updates", Mode.UPDATE))


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in one of its rounds."""

    index: str
    value: int
    extent: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the list the walk is: the rounds around it, and what may be named."""

    scope: Mapping[str, Any]
    loops: tuple[Loop, ...] = ()


def build_handwritten(spec: HandSpec, scope: Mapping[str, Any], faults: Faults) -> Schedule:
    """The schedule as it is written; a ``SpecError`` of all mistakes, races apart."""
    issuer = Issuer(spec, scope, faults)
    issuer.read_streams()
    issuer.read_buffers()
    with faults.collecting():
        issuer.walk(spec.schedule.issue, spec.site["schedule"]["issue"], Place(scope))
    program = issuer.program()
    if not faults.found:
        check_flow([program], faults)
    faults.check()
    return issuer.schedule(program)


class Issuer:
    """Walks the list of what is issued."""

    def __init__(self, spec: HandSpec, scope: Mapping[str, Any], faults: Faults) -> None:
        self.spec, self.scope, self.faults = spec, scope, faults
        self.buffers: dict[str, Buffer] = {}
        self.absent: set[str] = set()
        self.streams: dict[str, Stream] = {}
        self.ops: dict[str, Op] = {}
        self.instructions: list[Instruction] = []
        self.recorded: set[str] = set()
        self.runs_on: dict[str, tuple[str, Span]] = {}

    def read_streams(self) -> None:
        site = self.spec.site["schedule"]["streams"]
        for name, device in self.spec.schedule.streams.items():
            if not NAME.fullmatch(name) or name in (HOST, "for", "if"):
                self.faults.mistake(
                    "bad-name", f"'{name}' cannot be a stream's name", site[name].key
                )
            with self.faults.collecting():
                known_device(device, self.spec.devices, site[name].span)
            self.streams[name] = Stream(name, device)

    def read_buffers(self) -> None:
        names: dict[str, Declared | None] = {}
        for name, each in self.spec.buffers.items():
            at = self.spec.site["buffers"][name]
            names[name] = Declared(name, each, at, "", 0, self.scope, names)
            if each.each is not None:
                text = "a hand-written schedule has every buffer once"
                self.faults.mistake("bad-each", text, at["each"].key)
        buffers = Buffers(self.spec.devices, None, self.faults)
        buffers.make_unused(names, set())
        self.buffers, self.absent = buffers.made, buffers.absent | buffers.failed

    def walk(self, entries: Any, site: Site, place: Place) -> None:
        if not isinstance(entries, list):
            raise error("bad-issue", f"expected a list, found {kind(entries)}", site.span)
        for index, entry in enumerate(entries):
            with self.faults.collecting():
                self.entry(entry, site[index], place)

    def entry(self, entry: Any, site: Site, place: Place) -> None:
        if not isinstance(entry, dict):
            text = f"expected a stream with what is issued to it, found {kind(entry)}"
            raise error("bad-issue", text, site.span, hint="write - stream: [op, ...]")
        if "for" in entry:
            self.check_fields(entry, ("for", "do"), site)
            self.loop(entry, site, place)
        elif "if" in entry:
            self.check_fields(entry, ("if", "do", "else"), site)
            is_true = holds(condition(entry["if"], site["if"]), place.scope, site["if"].span)
            if is_true or "else" in entry:
                branch = "do" if is_true else "else"
                self.walk(entry.get(branch), site[branch], place)
        else:
            self.to_stream(entry, site, place)

    def check_fields(self, entry: Mapping[str, Any], fields: tuple[str, ...], site: Site) -> None:
        for name in entry:
            if name not in fields:
                hint = did_you_mean(name, fields)
                raise error("unknown-field", f"unknown field '{name}'", site[name].key, hint=hint)
        if "do" not in entry:
            raise error("missing-field", f"'{fields[0]}' needs a field 'do'", site[fields[0]].key)

    def loop(self, entry: Mapping[str, Any], site: Site, place: Place) -> None:
        head = entry["for"]
        if not isinstance(head, dict) or len(head) != 1:
            text = f"expected one index and its extent, found {kind(head)}"
            raise error("bad-issue", text, site["for"].span, hint="write for: {i: pieces}")
        ((index, extent),) = head.items()
        at = site["for"][index]
        if (why := why_no_index(index, place.scope)) is not None:
            raise error("bad-name", f"'{index}' cannot be an index: {why}", at.key)
        if isinstance(extent, bool) or not isinstance(extent, int | str):
            raise error("bad-value", f"expected a number, found {kind(extent)}", at.span)
        count = int(evaluate_count(extent, place.scope, at.span))
        for value in range(count):
            if len(self.instructions) > MOST_INSTRUCTIONS:
                text = f"this issues more than {MOST_INSTRUCTIONS} instructions"
                raise error("too-many-ops", text, at.span)
            inner = Place({**place.scope, index: value}, (*place.loops, Loop(index, value, count)))
            self.walk(entry["do"], site["do"], inner)

    def to_stream(self, entry: Mapping[str, Any], site: Site, place: Place) -> None:
        if len(entry) != 1:
            text = "an entry is one stream, so that the order in which things are issued is plain"
            raise error("bad-issue", text, site.key, hint="make an entry of its own for each")
        ((name, items),) = entry.items()
        if name != HOST and name not in self.streams:
            known = (*self.streams, HOST, "for", "if")
            hint = did_you_mean(name, known) or f"there are {', '.join(self.streams)} and host"
            raise error("unknown-stream", f"unknown stream '{name}'", site[name].key, hint=hint)
        if not isinstance(items, list):
            raise error("bad-issue", f"expected a list, found {kind(items)}", site[name].span)
        if name == HOST:
            self.streams.setdefault(HOST, Stream(HOST, HOST))
        for index, item in enumerate(items):
            with self.faults.collecting():
                self.item(item, site[name][index], name, place)

    def item(self, item: Any, site: Site, stream: str, place: Place) -> None:
        if isinstance(item, str):
            op = self.op(item, site.span, stream, place)
            self.ops[op.name] = op
            self.instructions.append(Run(stream, op.name, site.span))
            return
        if not isinstance(item, dict) or len(item) != 1:
            text = f"expected an op, record, wait or sync, found {kind(item)}"
            raise error("bad-issue", text, site.span)
        ((what, value),) = item.items()
        if what not in ("record", "wait", "sync"):
            hint = did_you_mean(what, ("record", "wait", "sync"))
            raise error("unknown-field", f"unknown field '{what}'", site[what].key, hint=hint)
        if stream == HOST:
            text = "the host neither records nor waits for events"
            raise error("bad-issue", text, site[what].key, hint="write {sync: host} on a stream")
        if what == "sync":
            if value != HOST:
                text = f"expected sync: host, found {kind(value)}"
                raise error("bad-issue", text, site[what].span)
            self.instructions.append(Sync(stream, site.span))
            return
        event = self.event(value, site[what], place)
        if what == "record":
            self.recorded.add(event)
            self.instructions.append(Record(stream, event, site.span))
            return
        self.check_recorded(event, site[what].span)
        self.instructions.append(Wait(stream, event, site.span))

    def event(self, value: Any, site: Site, place: Place) -> str:
        match = INDEXED.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise error("bad-issue", f"expected an event's name, found {kind(value)}", site.span)
        if match[2] is None:
            return match[1]
        return f"{match[1]}[{evaluate(match[2], place.scope, site.span)}]"

    def check_recorded(self, event: str, span: Span) -> None:
        if event in self.recorded:
            return
        name = event.partition("[")[0]
        known = {each.partition("[")[0] for each in self.recorded}
        text = f"event '{name}' is waited for before anything records it"
        if event != name and name in known:
            text = f"event '{name}' is waited for at an index that nothing recorded before"
        hint = did_you_mean(name, known - {name})
        raise error("unrecorded-event", text, span, hint=hint)

    def op(self, text: str, span: Span, stream: str, place: Place) -> Op:
        match = INDEXED.fullmatch(text)
        if match is None or match[1] not in self.spec.ops:
            name = match[1] if match else text
            hint = did_you_mean(name, self.spec.ops)
            raise error("unknown-op", f"'{name}' is no op of this schedule", span, hint=hint)
        name, spec = match[1], self.spec.ops[match[1]]
        loop, piece = self.piece(match[2], span, place)
        prefix = "".join(f"{e.index}.{e.value}/" for e in place.loops if e is not loop)
        step = prefix + name
        full = step if piece.of == 1 else f"{step}/piece.{piece.index}"
        if full in self.ops:
            raise error(
                "duplicate-name",
                f"'{name}' is issued twice in one round",
                span,
                notes=[Note("issued first here", self.ops[full].span)],
                hint="declare a second op, or give its pieces an index",
            )
        accesses = tuple(self.accesses(name, spec, piece, has_piece=loop is not None))
        device = self.streams[stream].device
        self.check_device(name, spec, accesses, stream, span)
        rows = [self.buffers[a.region.buffer].rows for a in accesses if a.rows == SPLIT]
        axis = Axis(rows[0]) if rows else Axis()
        return Op(full, step, device, Opaque(), accesses, axis, piece, span=span)

    def piece(self, index: str | None, span: Span, place: Place) -> tuple[Loop | None, Piece]:
        if index is None:
            return None, WHOLE
        value = evaluate(index, place.scope, span)
        names = check_expression(index, span).names
        loops = [each for each in place.loops if each.index in names]
        if len(loops) != 1 or isinstance(value, bool) or not isinstance(value, int):
            text = f"'[{index}]' is no piece: it must name the index of one loop"
            raise error("bad-issue", text, span)
        of = loops[0].extent
        if not 0 <= value < of:
            raise error("bad-issue", f"there is no piece '[{index}]' of {of} in some round", span)
        return loops[0], Piece(int(value), of, Fraction(value, of), Fraction(value + 1, of))

    def accesses(
        self, name: str, spec: OpaqueSpec, piece: Piece, *, has_piece: bool
    ) -> Iterator[Access]:
        site = self.spec.site["ops"][name]
        for field, mode in ACCESSES:
            for index, text in enumerate(getattr(spec, field)):
                with self.faults.collecting():
                    yield self.access(text, mode, site[field][index].span, piece, has_piece)

    def access(self, text: str, mode: Mode, span: Span, piece: Piece, has_piece: bool) -> Access:
        name, slash, rows = text.partition("/")
        if name not in self.buffers:
            hint = did_you_mean(name, self.spec.buffers)
            if name in self.absent:
                hint = "its declaration is left out or wrong"
            raise error("unknown-buffer", f"unknown buffer '{name}'", span, hint=hint)
        buffer = self.buffers[name]
        if not slash:
            return Access(name, Region(name, 0, buffer.nbytes), mode, ALL, span)
        if rows != "split":
            text = f"'/{rows}' is no share of '{name}'"
            raise error("bad-rows", text, span, hint=f"write {name} or {name}/split")
        if not has_piece:
            text = f"'{name}/split' is the rows of a piece, but the op is issued without an index"
            raise error("bad-rows", text, span, hint="issue it as op[i] within a loop")
        lo, hi = piece.bounds(Axis(buffer.rows), None)
        region = Region(name, lo * buffer.row_nbytes, hi * buffer.row_nbytes)
        return Access(name, region, mode, SPLIT, span)

    def check_device(
        self, name: str, spec: OpaqueSpec, accesses: tuple[Access, ...], stream: str, span: Span
    ) -> None:
        """Host steps touch mapped memory only; work that touches one device runs there."""
        device = self.streams[stream].device
        touched = {self.buffers[each.region.buffer].device for each in accesses} - {MAPPED}
        if device == HOST and touched:
            first = next(e for e in accesses if self.buffers[e.region.buffer].device != MAPPED)
            text = f"'{name}' is a host step, but '{first.region.buffer}' is not in mapped memory"
            raise error("wrong-device", text, span, notes=[Note("touched here", first.span)])
        if spec.device is not None and spec.device != device:
            at = self.spec.site["ops"][name]["device"].span
            text = f"'{name}' is for '{spec.device}', but stream '{stream}' is of '{device}'"
            raise error("wrong-device", text, span, notes=[Note("said here", at)])
        if len(touched) == 1 and device not in touched and device != HOST:
            (only,) = touched
            text = f"'{name}' touches memory of '{only}' alone, but '{stream}' is of '{device}'"
            hint = f"if that is meant, give the op device: {device}"
            if spec.device is None:
                raise error("wrong-device", text, span, hint=hint)
        known, first_span = self.runs_on.setdefault(name, (device, span))
        if known != device:
            text = f"'{name}' is issued to '{known}' and to '{device}'"
            raise error("wrong-device", text, span, notes=[Note("first here", first_span)])

    def program(self) -> Program:
        ops = tuple(self.ops.values())
        buffers = with_users(self.buffers, ops)
        return Program(self.spec.name, tuple(self.spec.devices), buffers, ops)

    def schedule(self, program: Program) -> Schedule:
        return Schedule(
            program=program,
            streams=tuple(self.streams.values()),
            origin=next(iter(self.streams)),
            instructions=tuple(self.instructions),
            edges=(),
            memory=memory_of(program.buffers),
            is_handwritten=True,
        )


def condition(value: Any, site: Site) -> bool | str:
    if not isinstance(value, bool | str):
        raise error("bad-value", f"expected a condition, found {kind(value)}", site.span)
    return value


def memory_of(buffers: Mapping[str, Buffer]) -> Memory:
    """Each buffer in an allocation of its own, an overlay in that of its base."""
    allocations = tuple(
        Allocation(each.name, each.device, each.nbytes, each.near)
        for each in buffers.values()
        if each.overlay is None
    )
    slots = {
        name: Slot(*each.overlay) if each.overlay else Slot(name, 0)
        for name, each in buffers.items()
    }
    return Memory(allocations, slots)
