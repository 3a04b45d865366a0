"""Program -> Program: turn every transfer into the steps of its route.

    activations  mixed_h -> x  by host     becomes     activations/down  mixed_h -> activations/wire
                                                       activations/up    activations/wire -> x

Staging buffers are made as the route file says; steps and staging whose ``when`` is false are left
out. Steps take over the transfer's cut, span and priority; what the transfer was to run ``after``
holds for its first step. Each step has a lane of its own, so that a piece can cross while the
next is being prepared.

Staging of ``slots: n`` is a ring if there are more pieces than slots: n times the rows of the
largest piece, whatever the count. ``split_pieces`` says which piece lies in which slot.

A step touches memory of the device on which it does not run only as the route's ``requires``
allows. Mistakes of a route are shown in its file, with the transfer as a note.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from graphc.ir import (
    MAPPED,
    SPLIT,
    Access,
    Axis,
    Buffer,
    Copy,
    Mode,
    Op,
    Program,
    Role,
    Rows,
    RowsKind,
    Transfer,
)
from graphc.kernels.bind import bind
from graphc.kernels.call import Argument
from graphc.kernels.contract import Catalog
from graphc.passes.choose_routes import source_device, target_device
from graphc.plan import Need
from graphc.regions import Region
from graphc.routes import ENDS, RouteSpec, StagingSpec, StepSpec, Traveller
from graphc.text.diagnostics import Note, Span, SpecError, error, noted
from graphc.text.load import Site


def lower_routes(program: Program, routes: Mapping[str, RouteSpec], catalog: Catalog) -> Program:
    """Replace every transfer by its route's steps and add their staging buffers."""
    buffers = dict(program.buffers)
    ops: list[Op] = []
    known: dict[Hashable, Lowered] = {}
    for op in program:
        if not isinstance(op.work, Transfer):
            ops.append(op)
            continue
        with noted(Note("used here", op.span)):
            for trip in trips(op, op.work, program, routes[op.work.route]):
                key = likeness(trip)
                if key not in known:
                    known[key] = lowered(trip, catalog)
                found = known[key].again(trip)
                buffers |= {each.name: each for each in found.trip.staging.values()}
                ops += found.ops
    return replace(program, buffers=buffers, ops=tuple(ops))


@dataclass(frozen=True, slots=True)
class Trip:
    """One source and one target of a transfer, on the way by its route."""

    op: Op
    work: Transfer
    route: RouteSpec
    suffix: str  # tells the pairs of one transfer apart
    devices: Mapping[str, str]  # "source" and "target" -> logical device
    source: Buffer
    target: Buffer
    wire: str
    staging: Mapping[str, Buffer]

    @property
    def travellers(self) -> dict[str, Traveller | None]:
        """What a route's expressions may name; staging that is not needed is null."""
        ends = {"source": self.source, "target": self.target}
        absent: dict[str, Traveller | None] = dict.fromkeys(self.route.staging)
        return absent | {
            name: Traveller(name, each.dtype) for name, each in {**self.staging, **ends}.items()
        }

    @property
    def axis(self) -> Axis:
        return Axis(self.source.rows, self.source.per_count)

    @property
    def pieces(self) -> int:
        return len(self.op.placement.pieces) - 1

    def slots(self, name: str) -> int | None:
        """The slots of a staging buffer that is a ring; None if it holds all pieces at once."""
        staging = self.route.staging.get(name)
        if staging is None or staging.slots == "all" or staging.slots >= self.pieces:
            return None
        return staging.slots

    def argument(self, word: str, at: Site) -> Argument:
        """What a step is given for an argument, and where its route says so."""
        name = self.route.name_of(word, self.travellers, wire=self.wire)
        known = {**self.staging, "source": self.source, "target": self.target}
        if name not in known:
            raise bad_route(at, f"'{name}' is left out here: its 'when' is false")
        slots = self.slots(name)
        if slots is None:
            return Argument(known[name], None, at.span)
        return Argument(known[name], Rows(RowsKind.RING, slots), at.span, self.axis)

    def steps(self, catalog: Catalog) -> Iterator[Op]:
        is_first = True
        for index, step in enumerate(self.route.steps):
            if not self.route.holds(step.when, self.travellers, wire=self.wire):
                continue
            at = self.route.site["steps"][index]
            op = self.step(step, at, catalog, is_first=is_first)
            check_cut(self, op, at)
            check_reach(self, op, step, at)
            yield op
            is_first = False

    def step(self, step: StepSpec, at: Site, catalog: Catalog, *, is_first: bool) -> Op:
        device = self.devices[step.on]
        args = {
            argument: self.argument(word, place_of(step, argument, at))
            for argument, word in step.arguments.items()
        }
        name = f"{self.op.step}/{step.name}{self.suffix}"
        placement = replace(
            self.op.placement,
            stream=self.work.streams.get(step.name),
            lane=f"{lane_of(self.op.step)}.{step.name}",
            after=self.op.placement.after if is_first else (),
        )
        if step.kernel is None:
            return Op(
                name,
                name,
                device,
                Copy(),
                copied(args["source"], args["target"], at["copy"]),
                self.axis,
                placement=placement,
                span=self.op.span,
            )
        span = at["kernel"].span
        contract = catalog.contract(step.kernel, span)
        bound = bind(contract, args, options={}, scalars={}, device=device, span=span)
        return Op(
            name,
            name,
            device,
            bound.kernel,
            bound.accesses,
            bound.axis,
            placement=placement,
            span=self.op.span,
        )


def trips(op: Op, work: Transfer, program: Program, route: RouteSpec) -> Iterator[Trip]:
    pairs = len(op.accesses) // 2
    devices = {"source": source_device(op, program), "target": target_device(op, program)}
    for index in range(pairs):
        suffix = f".{index}" if pairs > 1 else ""
        source = program.buffers[op[f"source.{index}"].region.buffer]
        target = program.buffers[op[f"target.{index}"].region.buffer]
        wire = work.wire or source.dtype
        yield Trip(op, work, route, suffix, devices, source, target, wire, {})


@dataclass(frozen=True, slots=True)
class Lowered:
    """A trip with its staging, and its steps."""

    trip: Trip
    ops: tuple[Op, ...]

    def again(self, trip: Trip) -> Lowered:
        """The same for another trip that is like this one: only names and places differ."""
        old, step = self.trip, trip.op.step
        names = {old.source.name: trip.source.name, old.target.name: trip.target.name}
        staging: dict[str, Buffer] = {}
        for name, each in old.staging.items():
            staging[name] = replace(each, name=f"{step}/{name}{trip.suffix}", span=trip.op.span)
            names[each.name] = staging[name].name
        ops: list[Op] = []
        for like in self.ops:
            name = step + like.name.removeprefix(old.op.step)
            accesses = tuple(renamed(access, names, trip.op.span) for access in like.accesses)
            placement = like.placement
            if not ops and placement.after != trip.op.placement.after:
                placement = replace(placement, after=trip.op.placement.after)
            ops.append(
                Op(
                    name,
                    name,
                    like.device,
                    like.work,
                    accesses,
                    like.axis,
                    placement=placement,
                    span=trip.op.span,
                )
            )
        return Lowered(replace(trip, staging=staging), tuple(ops))


def renamed(access: Access, names: Mapping[str, str], span: Span) -> Access:
    # From here on the spec's author is spoken to, who knows the transfer and not its route.
    region = Region(names[access.region.buffer], access.region.start, access.region.stop)
    return Access(access.argument, region, access.mode, access.rows, span)


def likeness(trip: Trip) -> Hashable:
    """All that a route's steps depend on, but for names and places."""
    placement = trip.op.placement
    return (
        trip.route.name,
        trip.suffix,
        trip.wire,
        lane_of(trip.op.step),
        tuple(trip.work.streams.items()),
        (placement.pieces, placement.stream, placement.priority, placement.blocks),
        *((e.device, e.dtype, e.shape, e.per_count) for e in (trip.source, trip.target)),
    )


def lowered(trip: Trip, catalog: Catalog) -> Lowered:
    """The steps as the route file says; a ``SpecError`` if they cannot be."""
    found = replace(trip, staging=dict(staging_of(trip)))
    return Lowered(found, tuple(found.steps(catalog)))


def staging_of(trip: Trip) -> Iterator[tuple[str, Buffer]]:
    for name, staging in trip.route.staging.items():
        if trip.route.holds(staging.when, trip.travellers, wire=trip.wire):
            yield name, staging_buffer(trip, name, staging)


def staging_buffer(trip: Trip, name: str, staging: StagingSpec) -> Buffer:
    is_mapped = staging.memory == "mapped"
    slots = trip.slots(name)
    rows = trip.source.rows if slots is None else slots * largest_piece(trip)
    return Buffer(
        name=f"{trip.op.step}/{name}{trip.suffix}",
        device=MAPPED if is_mapped or staging.at is None else trip.devices[staging.at],
        dtype=trip.route.name_of(staging.dtype, trip.travellers, wire=trip.wire),
        shape=(rows, *trip.source.shape[1:]) if trip.source.shape else (),
        per_count=trip.source.per_count if slots is None else 0,
        role=Role.SCRATCH,
        near=tuple(trip.devices.values()) if is_mapped else (),
        span=trip.op.span,
    )


def largest_piece(trip: Trip) -> int:
    """The most rows that a piece has at any count: its share of the capacity, rounded up.

    At least one, so that a capacity of zero keeps its dependencies.
    """
    per_count = trip.axis.per_count
    capacity = trip.axis.extent // per_count if per_count else trip.axis.extent
    shares = [stop - start for start, stop in pairwise(trip.op.placement.pieces)]
    return max(1, *(ceil(share * capacity) for share in shares)) * (per_count or 1)


def place_of(step: StepSpec, argument: str, at: Site) -> Site:
    return at["args"][argument] if step.kernel else at["copy"][ENDS.index(argument)]


def copied(source: Argument, target: Argument, at: Site) -> tuple[Access, ...]:
    """The accesses of a copy: bytes, which have no other dtype on arrival."""
    assert source.buffer is not None
    assert target.buffer is not None
    if source.buffer.dtype != target.buffer.dtype:
        text = (
            f"a copy keeps the bytes: '{source.buffer.name}' is {source.buffer.dtype}, "
            f"'{target.buffer.name}' is {target.buffer.dtype}"
        )
        raise bad_route(at, text, hint="use the kernel 'convert'")
    return tuple(
        Access(end, Region(each.name, 0, each.nbytes), mode, given.rows or SPLIT, given.span)
        for end, given, each, mode in (
            ("source", source, source.buffer, Mode.READ),
            ("target", target, target.buffer, Mode.WRITE),
        )
    )


def check_cut(trip: Trip, op: Op, at: Site) -> None:
    """Pieces of a step write apart; in a ring they also read nothing of other pieces."""
    has_ring = any(trip.slots(name) for name in trip.staging)
    is_cut = op.axis == trip.axis
    for access in op.accesses:
        is_cut &= access.rows.kind in (RowsKind.SPLIT, RowsKind.RING) or not (
            has_ring or access.mode.is_write
        )
    if trip.pieces > 1 and not is_cut:
        text = f"this step cannot be cut into {trip.pieces} pieces: not all of it goes by rows"
        raise error("cannot-cut", text, at["kernel"].span)


def check_reach(trip: Trip, op: Op, step: StepSpec, at: Site) -> None:
    """Memory of the other device is touched only as the route requires it of the machine."""
    asked = trip.route.requires
    devices = {each.name: each.device for each in (trip.source, trip.target)}
    devices |= {each.name: each.device for each in trip.staging.values()}
    for access in op.accesses:
        device = devices[access.region.buffer]
        if device in (MAPPED, op.device) or Need.SAME_GPU in asked:
            continue
        need = need_of(op, access, step.on)
        if need in asked:
            continue
        other = "target" if step.on == "source" else "source"
        how = "writes" if access.mode.is_write else "reads"
        text = f"this step on the {step.on} {how} memory of the {other}"
        place = place_of(step, access.argument, at)
        if need is None:
            raise bad_route(place, f"{text}, which nothing that a route can require allows")
        raise bad_route(
            place,
            f"{text}, but the route does not require {need.value}",
            notes=[Note("what it requires is here", trip.route.site["requires"].span)],
            hint=f"add {need.value} to requires",
        )


def need_of(op: Op, access: Access, on: str) -> Need | None:
    """What a step needs to touch the other device: bytes go from source to target only."""
    goes_on = access.mode is Mode.READ if on == "target" else not access.mode.is_read
    if not goes_on:
        return None
    if isinstance(op.work, Copy):
        return Need.PEER_COPY
    return Need.PEER_READ if on == "target" else Need.PEER_WRITE


def bad_route(
    at: Site, message: str, *, notes: Sequence[Note] = (), hint: str | None = None
) -> SpecError:
    return error("bad-route", message, at.span, notes=notes, hint=hint)


def lane_of(step: str) -> str:
    """The transfer's own name, without the iteration: layers share their lanes.

    >>> lane_of("layer.0/activations")
    'activations'
    """
    return step.rsplit("/", 1)[-1]
