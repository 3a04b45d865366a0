"""Programs in a line an op, for golden files and topologies.

    {name: a, at: g0, reads: [x], writes: [y], pieces: 2, lane: down, after: [b]}

All buffers are eight rows of a byte. An argument is a buffer (``x``: the piece's rows), all of it
whatever the piece (``x/all``), or some of its bytes (``x[0:4]``).

Of several ranks, each on a device of its own, all buffers and ops exist once a rank. An argument is
then the rank's own, that of all ranks (``x@all``), or the rank's row of each (``x@row``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from spmd import on_all_ranks

from graphc.ir import (
    ALL,
    SPLIT,
    Access,
    Axis,
    Buffer,
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

MODES = {
    "reads": Mode.READ,
    "updates": Mode.UPDATE,
    "scatters": Mode.SCATTER,
    "adds": Mode.ACCUMULATE,
    "writes": Mode.WRITE,
    "writes_some": Mode.WRITE_SOME,
}
ARGUMENT = re.compile(r"(\w+)(/all|@all|@row)?(?:\[(\d+):(\d+)\])?")


def small_program(buffers: Mapping[str, str], ops: Sequence[Mapping[str, Any]]) -> Program:
    """Buffers as ``{x: g0 inout, y: g0}``, ops as above; already cut into pieces."""
    made = {name: small_buffer(name, text) for name, text in buffers.items()}
    devices = tuple(dict.fromkeys(str(op["at"]) for op in ops)) or ("g0",)
    whole = Program("small", devices, made, tuple(small_op(op) for op in ops))
    pieces = split_pieces(whole)
    windows = {
        access.argument: access.region
        for op in whole
        for access in op.accesses
        if access.region.stop
    }
    cut = (
        replace(
            op,
            accesses=tuple(
                replace(each, region=windows.get(each.argument, each.region))
                for each in op.accesses
            ),
        )
        for op in pieces
    )
    return replace(pieces, ops=tuple(cut))


def small_spmd_program(
    ranks: int, buffers: Mapping[str, str], ops: Sequence[Mapping[str, Any]]
) -> Program:
    """Buffers as ``{x: inout, y: scratch}``, ops as above without ``at``; already cut."""
    devices = tuple(f"g{rank}" for rank in range(ranks))
    made = [
        small_buffer(f"rank.{rank}/{name}", f"{device} {text}")
        for rank, device in enumerate(devices)
        for name, text in buffers.items()
    ]
    program = Program(
        "small", devices, {each.name: each for each in made}, (), rank_devices=devices
    )
    for op in ops:
        whole = on_all_ranks(small_op({**op, "at": ""}), program)
        program = replace(program, ops=(*program.ops, *whole))
    return split_pieces(program)


def small_buffer(name: str, text: str) -> Buffer:
    device, *rest = text.split()
    role = next((Role(word) for word in rest if "@" not in word), Role.SCRATCH)
    over = next((word for word in rest if "@" in word), None)
    if over is None:
        return Buffer(name, device, "u8", (8,), role=role)
    base, offset = over.split("@")
    return Buffer(name, device, "u8", (8 - int(offset),), overlay=(base, int(offset)))


def small_op(op: Mapping[str, Any]) -> Op:
    name = op["name"]
    accesses = []
    for word, mode in MODES.items():
        for text in op.get(word, ()):
            match = ARGUMENT.fullmatch(text)
            assert match, text
            buffer, which, start, stop = match.groups()
            region = Region(buffer, int(start or 0), int(stop or 0))
            rows = ALL if which or stop else SPLIT
            if which == "@row":
                rows = Rows(RowsKind.ROW)
            peer = -1 if which in ("@all", "@row") else None  # every rank
            accesses.append(Access(f"{name}.{len(accesses)}", region, mode, rows, peer=peer))
    pieces = op.get("pieces", 1)
    placement = Placement(
        pieces=tuple(Fraction(index, pieces) for index in range(pieces + 1)),
        stream=op.get("stream"),
        priority=op.get("priority", 0),
        lane=op.get("lane"),
        after=tuple(op.get("after", ())),
    )
    return Op(name, name, op["at"], Opaque(), tuple(accesses), Axis(8), placement=placement)
