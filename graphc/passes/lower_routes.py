"""Program -> Program: turn every transfer into the steps of its route.

    activations  mixed_h -> x  by host     becomes     activations/down  mixed_h -> activations/wire
                                                       activations/up    activations/wire -> x

Staging buffers are made as the route file says; steps and staging whose ``when`` is false are left
out. Steps take over the transfer's cut, span and priority; what the transfer was to run ``after``
holds for its first step. Each step has a lane of its own, so that a piece can cross while the
next is being prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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
    Transfer,
)
from graphc.kernels.contract import Argument, Catalog, bind
from graphc.passes.choose_routes import source_device, target_device
from graphc.regions import Region
from graphc.routes import RouteSpec, StagingSpec, StepSpec, Traveller


def lower_routes(program: Program, routes: Mapping[str, RouteSpec], catalog: Catalog) -> Program:
    """Replace every transfer by its route's steps and add their staging buffers."""
    buffers = dict(program.buffers)
    ops: list[Op] = []
    for op in program:
        if not isinstance(op.work, Transfer):
            ops.append(op)
            continue
        for trip in trips(op, op.work, program, routes[op.work.route]):
            buffers |= {each.name: each for each in trip.staging.values()}
            ops += trip.steps(catalog)
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

    def buffer(self, name: str) -> Buffer:
        return {**self.staging, "source": self.source, "target": self.target}[name]

    def steps(self, catalog: Catalog) -> Iterator[Op]:
        is_first = True
        for step in self.route.steps:
            if not self.route.holds(step.when, self.travellers, wire=self.wire):
                continue
            yield self.step(step, catalog, is_first=is_first)
            is_first = False

    def step(self, step: StepSpec, catalog: Catalog, *, is_first: bool) -> Op:
        device = self.devices[step.on]
        args = {
            argument: self.buffer(self.route.name_of(value, self.travellers, wire=self.wire))
            for argument, value in step.arguments.items()
        }
        name = f"{self.op.step}/{step.name}{self.suffix}"
        placement = replace(
            self.op.placement,
            stream=self.work.streams.get(step.name),
            lane=f"{lane_of(self.op.step)}.{step.name}",
            after=self.op.placement.after if is_first else (),
        )
        if step.kernel is None:
            source, target = args["source"], args["target"]
            return Op(
                name,
                name,
                device,
                Copy(),
                (copied("source", source, Mode.READ), copied("target", target, Mode.WRITE)),
                Axis(source.rows, source.per_count),
                placement=placement,
                span=self.op.span,
            )
        bound = bind(
            catalog.contract(step.kernel, self.op.span),
            {argument: Argument(each, None, self.op.span) for argument, each in args.items()},
            options={},
            scalars={},
            device=device,
            span=self.op.span,
        )
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
        bare = Trip(op, work, route, suffix, devices, source, target, work.wire or source.dtype, {})
        yield replace(bare, staging=dict(staging_of(bare)))


def staging_of(trip: Trip) -> Iterator[tuple[str, Buffer]]:
    for name, staging in trip.route.staging.items():
        if trip.route.holds(staging.when, trip.travellers, wire=trip.wire):
            yield name, staging_buffer(trip, name, staging)


def staging_buffer(trip: Trip, name: str, staging: StagingSpec) -> Buffer:
    is_mapped = staging.memory == "mapped"
    return Buffer(
        name=f"{trip.op.step}/{name}{trip.suffix}",
        device=MAPPED if is_mapped or staging.at is None else trip.devices[staging.at],
        dtype=trip.route.name_of(staging.dtype, trip.travellers, wire=trip.wire),
        shape=trip.source.shape,
        per_count=trip.source.per_count,
        role=Role.SCRATCH,
        near=tuple(trip.devices.values()) if is_mapped else (),
        span=trip.op.span,
    )


def copied(argument: str, buffer: Buffer, mode: Mode) -> Access:
    return Access(argument, Region(buffer.name, 0, buffer.nbytes), mode, SPLIT, buffer.span)


def lane_of(step: str) -> str:
    """The transfer's own name, without the iteration: layers share their lanes.

    >>> lane_of("layer.0/activations")
    'activations'
    """
    return step.rsplit("/", 1)[-1]
