"""Random programs, already cut into pieces, with everything that an order can come from.

A program follows from a seed and a size, so that a failure is named by two numbers.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

from hypothesis import strategies as st
from oracles import conflict_within_steps

from graphc.ir import (
    ALL,
    MAPPED,
    SPLIT,
    Access,
    Axis,
    Buffer,
    Kernel,
    Mode,
    Op,
    Opaque,
    Placement,
    Program,
    Role,
    Rows,
    RowsKind,
)
from graphc.passes.split_pieces import split_pieces
from graphc.regions import Region

CUTS = (
    (Fraction(0), Fraction(1)),
    (Fraction(0), Fraction(1, 2), Fraction(1)),
    (Fraction(0), Fraction(1, 3), Fraction(2, 3), Fraction(1)),
    (Fraction(0), Fraction(1, 4), Fraction(1)),
    tuple(Fraction(index, 4) for index in range(5)),
)
FILLED = (Role.INPUT, Role.INOUT, Role.WEIGHT, Role.STATE, Role.STATUS)


def programs(max_steps: int = 8) -> st.SearchStrategy[Program]:
    """Programs by seed: quick to make, and small ones are tried when one has failed."""
    return st.builds(
        lambda steps, seed: random_program(Random(seed), max_steps=steps),
        st.integers(1, max_steps),
        st.integers(0, 2**32),
    )


def random_program(rng: Random, *, max_steps: int = 8, devices: tuple[str, ...] = ()) -> Program:
    """A program with pieces, counts, overlays, all modes, ``after``, lanes and named streams."""
    devices = devices or ("g0", "g1", "g2")[: rng.choice((1, 1, 2, 3))]
    capacity = rng.choice((None, 1, 5, 12))
    buffers = random_buffers(rng, devices, capacity)
    ops: list[Op] = []
    windows: dict[tuple[str, str], tuple[int, int]] = {}
    ready = {name for name, each in buffers.items() if root(buffers, name).role in FILLED}
    iteration = rng.choice(("", "", "layer.{}/"))
    total = max_steps
    for number in range(total):
        prefix = iteration.format(2 * number // total)
        names = nearby(rng, tuple(buffers), number / total)
        op = random_op(rng, f"{prefix}s{number}", devices, buffers, names, windows)
        for access in op.accesses:
            base = root(buffers, access.region.buffer).name
            if base not in ready and not fills(op, base, buffers, windows):
                ops.append(filling(op, buffers[base]))
            ready.add(base)
        if ops and rng.random() < 0.15:
            after = (rng.choice(ops).step,)
            op = replace(op, placement=replace(op.placement, after=after))
        ops.append(op)
    program = Program(
        "random", devices, buffers, tuple(ops), capacity, max(capacity or 1, 1), "tokens"
    )
    return without_conflicts(program, windows)


def nearby(rng: Random, names: tuple[str, ...], progress: float) -> tuple[str, ...]:
    """All names, or those whose turn it is: so that some buffers are done with early."""
    if rng.random() < 0.2:
        return names
    first = min(int(progress * len(names)), max(len(names) - 2, 0))
    return names[first : first + 2]


def root(buffers: dict[str, Buffer], name: str) -> Buffer:
    buffer = buffers[name]
    while buffer.overlay is not None:
        buffer = buffers[buffer.overlay[0]]
    return buffer


def random_buffers(
    rng: Random, devices: tuple[str, ...], capacity: int | None
) -> dict[str, Buffer]:
    buffers: dict[str, Buffer] = {}
    for number in range(rng.randint(2, 9)):
        name = f"b{number}"
        bases = [each for each in buffers.values() if each.nbytes]
        if bases and rng.random() < 0.2:
            buffers[name] = random_overlay(rng, name, rng.choice(bases), capacity)
            continue
        device = rng.choice((*devices, *devices, *devices, MAPPED))
        per_count = rng.choice((0, 1, 2)) if capacity else 0
        rows = per_count * (capacity or 0) or rng.randint(1, 8)
        buffers[name] = Buffer(
            name,
            device,
            rng.choice(("u8", "i32", "f32")),
            (rows, rng.randint(1, 2)),
            per_count,
            rng.choice((Role.SCRATCH,) * 16 + tuple(Role)),
            near=devices if device == MAPPED else (),
        )
    return buffers


def random_overlay(rng: Random, name: str, base: Buffer, capacity: int | None) -> Buffer:
    offset = rng.randint(0, base.nbytes - 1)
    room = base.nbytes - offset
    per_count = 1 if capacity and capacity <= room and rng.random() < 0.5 else 0
    rows = capacity or 1 if per_count else rng.randint(1, room)
    return Buffer(
        name, base.device, "u8", (rows,), per_count, overlay=(base.name, offset), near=base.near
    )


def fills(
    op: Op,
    base: str,
    buffers: dict[str, Buffer],
    windows: dict[tuple[str, str], tuple[int, int]],
) -> bool:
    """Whether all that the op does to these bytes is to write them all."""
    touching = [each for each in op.accesses if root(buffers, each.region.buffer).name == base]
    only = touching[0]
    return (
        len(touching) == 1
        and only.region.buffer == base
        and only.mode is Mode.WRITE
        and only.rows in (ALL, SPLIT)
        and (op.name, only.argument) not in windows
    )


def filling(op: Op, buffer: Buffer) -> Op:
    """An op that writes the whole buffer, so that what follows reads what somebody wrote."""
    prefix = op.step.rpartition("/")[0]
    name = f"{prefix}/fill/{buffer.name}" if prefix else f"fill/{buffer.name}"
    access = Access("y", Region(buffer.name, 0, 0), Mode.WRITE)
    return Op(name, name, op.device, Opaque(), (access,))


def random_op(
    rng: Random,
    name: str,
    devices: tuple[str, ...],
    buffers: dict[str, Buffer],
    names: tuple[str, ...],
    windows: dict[tuple[str, str], tuple[int, int]],
) -> Op:
    device = rng.choice(devices)
    bounds = rng.choice(CUTS)
    if rng.random() < 0.2:
        return random_call(rng, name, device, bounds, [buffers[each] for each in names])
    accesses = []
    is_counted = False
    is_step = rng.random() < 0.6  # from one buffer to the next, as most ops are
    for number in range(2 if is_step else rng.randint(1, 3)):
        buffer = buffers[names[number - 1] if is_step else rng.choice(names)]
        is_counted |= bool(buffer.per_count)
        mode = rng.choice((Mode.READ,) * 4 + tuple(Mode))
        if is_step:
            mode = Mode.WRITE if number == 0 else Mode.READ
        rows = rng.choice((SPLIT, SPLIT, SPLIT, *rows_that_fit(buffer, bounds)))
        if not buffer.per_count and len(bounds) == 2 and rng.random() < 0.5:
            start = rng.randint(0, buffer.nbytes - 1)
            windows[name, f"a{number}"] = start, rng.randint(start, buffer.nbytes)
            rows = ALL
        accesses.append(Access(f"a{number}", Region(buffer.name, 0, 0), mode, rows))
    placement = Placement(
        pieces=bounds,
        stream=f"{device}.x" if rng.random() < 0.15 else None,
        priority=rng.choice((0, 0, 0, -1)),
        lane=rng.choice((None, None, None, "up", "down")),
    )
    axis = Axis(8, 1 if is_counted else 0)
    return Op(name, name, device, Opaque(), tuple(accesses), axis, placement=placement)


def rows_that_fit(buffer: Buffer, bounds: tuple[Fraction, ...]) -> list[Rows]:
    """Rows that do not follow the axis."""
    found = [ALL, Rows(RowsKind.BLOCKS, blocks=CUTS[4])]
    if buffer.rows >= len(bounds) - 1:
        found.append(Rows(RowsKind.PIECE))
    return found


def random_call(
    rng: Random,
    name: str,
    device: str,
    bounds: tuple[Fraction, ...],
    buffers: list[Buffer],
) -> Op:
    """A call of a kernel, which accumulates by its own function, and whose regions are proven."""
    first = rng.choice(buffers)
    accesses = []
    for argument in ("x", "y")[: rng.randint(1, 2)]:
        buffer = rng.choice((first, *buffers))
        mode = rng.choice((Mode.ACCUMULATE,) * 8 + (Mode.READ, Mode.WRITE, Mode.UPDATE))
        rows = rng.choice(rows_that_fit(buffer, bounds))
        if (buffer.rows, buffer.per_count) == (first.rows, first.per_count) and rng.random() < 0.5:
            rows = SPLIT
        accesses.append(Access(argument, Region(buffer.name, 0, 0), mode, rows))
    work = Kernel(rng.choice(("sum", "greatest")), {}, {"bits": rng.random() < 0.5})
    axis = Axis(first.rows, first.per_count)
    placement = Placement(pieces=bounds)
    return Op(name, name, device, work, tuple(accesses), axis, placement=placement)


def without_conflicts(program: Program, windows: dict[tuple[str, str], tuple[int, int]]) -> Program:
    """The program in pieces; steps whose pieces would conflict stay whole."""
    while True:
        pieces = split_pieces(program)
        pieces = replace(pieces, ops=tuple(with_windows(op, windows) for op in pieces))
        bad = conflict_within_steps(pieces)
        if not bad:
            return pieces
        ops = (
            replace(op, placement=replace(op.placement, pieces=CUTS[0])) if op.step in bad else op
            for op in program
        )
        program = replace(program, ops=tuple(ops))


def with_windows(op: Op, windows: dict[tuple[str, str], tuple[int, int]]) -> Op:
    accesses = []
    for access in op.accesses:
        window = windows.get((op.step, access.argument))
        region = Region(access.region.buffer, *window) if window else access.region
        accesses.append(replace(access, region=region))
    return replace(op, accesses=tuple(accesses))
