"""Regions, worked out again from an access's rows, the op's piece and axis, and the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from graphc.ir import (
    SPLIT,
    Access,
    Buffer,
    Copy,
    Fill,
    Join,
    Kernel,
    Op,
    Opaque,
    Piece,
    Program,
    Rows,
    RowsKind,
)
from graphc.text.diagnostics import Diagnostic

WHOLE = (RowsKind.ALL, RowsKind.GATHER)  # what every piece touches from end to end


def region_faults(program: Program) -> Iterator[Diagnostic]:
    """Regions that are not what their ops will touch."""
    reach = Reach(program)
    for op in program.ops:
        if isinstance(op.work, Opaque | Join):
            continue  # what it declares is all that it is
        for access in op.accesses:
            if access.region.buffer not in program.buffers or reach.is_right(op, access):
                continue
            name, found = access.region.buffer, reach.bytes(op, access)
            text = (
                f"'{op.name}' touches {name}[{found[0]}:{found[1]}] by argument "
                f"'{access.argument}', but {access.region} is declared"
                if found
                else f"'{op.name}' cannot touch the rows '{access.rows.kind}' of '{name}': "
                "they do not fit its piece"
            )
            yield Diagnostic("bad-schedule", text, op.span)


class Reach:
    """The rows, at the nominal extent, that accesses must name; what ops share is found once."""

    def __init__(self, program: Program) -> None:
        self.capacity, self.nominal = program.capacity, program.nominal
        self.buffers = program.buffers
        self.sizes: dict[str, tuple[int, int]] = {}  # bytes of a row, and of all at the nominal
        # By the ids of objects, which the program keeps alive: fractions are slow to hash.
        self.shares: dict[tuple[int, int, int], tuple[int, int] | None] = {}
        self.blocks: dict[tuple[int, int], tuple[Fraction, Fraction] | None] = {}

    def is_right(self, op: Op, access: Access) -> bool:
        region = access.region
        if access.rows.kind in WHOLE and type(op.work) is Kernel:  # by far the most frequent
            return region.start == 0 and region.stop == self.size(region.buffer)[1]
        return self.bytes(op, access) == (region.start, region.stop)

    def bytes(self, op: Op, access: Access) -> tuple[int, int] | None:
        name = access.region.buffer
        rows, nbytes = self.rows(op, access, self.buffers[name]), self.size(name)[0]
        return rows and (rows[0] * nbytes, rows[1] * nbytes)

    def size(self, name: str) -> tuple[int, int]:
        size = self.sizes.get(name)
        if size is None:
            buffer = self.buffers[name]
            nbytes = buffer.row_nbytes
            size = self.sizes[name] = nbytes, buffer.nominal_rows(self.nominal) * nbytes
        return size

    def rows(self, op: Op, access: Access, buffer: Buffer) -> tuple[int, int] | None:
        """Rows ``[first, stop)``, as far as the count can move them; None if they make no sense."""
        rows = access.rows
        if isinstance(op.work, Copy | Fill) and rows.kind is not RowsKind.RING:
            rows = SPLIT  # a copy goes by the piece's rows, whatever is said of them
        match rows.kind:
            case RowsKind.SPLIT:
                return self.split(op, rows.factor, buffer)
            case RowsKind.ALL | RowsKind.GATHER:
                return 0, buffer.nominal_rows(self.nominal)
            case RowsKind.BLOCKS:
                return self.whole_blocks(op.piece, rows, buffer)
            case RowsKind.RING:
                return self.slot(op, rows.factor, buffer)
            case RowsKind.ROW:
                # Rows that follow the count have no row of their own for a rank.
                is_there = not buffer.per_count and 0 <= rows.factor < buffer.rows
                return (rows.factor, rows.factor + 1) if is_there else None
            case RowsKind.PIECE:
                if buffer.per_count:
                    return 0, buffer.nominal_rows(self.nominal)
                return op.piece.index, op.piece.index + 1

    def split(self, op: Op, factor: int, buffer: Buffer) -> tuple[int, int] | None:
        """What a launch computes: ``factor`` rows for each row of the axis in the piece."""
        axis = op.axis
        if buffer.rows != factor * axis.extent or buffer.per_count != factor * axis.per_count:
            return None
        share = self.share(op)
        return share and (factor * share[0], factor * share[1])

    def share(self, op: Op) -> tuple[int, int] | None:
        """The piece's rows of the axis."""
        piece, axis = op.piece, op.axis
        key = id(piece), axis.extent, axis.per_count
        if key not in self.shares:
            is_right = 0 <= piece.start <= piece.stop <= 1
            if axis.per_count:
                is_right &= self.is_whole(piece.start) and self.is_whole(piece.stop)
            count = self.nominal if axis.per_count else None
            self.shares[key] = piece.bounds(axis, count) if is_right else None
        return self.shares[key]

    def is_whole(self, bound: Fraction) -> bool:
        """Whether the bound is a row at the nominal extent: else regions meet not as rows do."""
        return self.nominal % bound.denominator == 0

    def whole_blocks(self, piece: Piece, rows: Rows, buffer: Buffer) -> tuple[int, int] | None:
        key = id(rows), id(piece)
        if key not in self.blocks:
            low = [each for each in rows.blocks if each <= piece.start]
            high = [each for each in rows.blocks if each >= piece.stop]
            self.blocks[key] = (max(low), min(high)) if low and high else None
        met, unit = self.blocks[key], buffer.per_count or rows.factor
        if met is None or unit < 1:
            return None
        if buffer.per_count and not (self.is_whole(met[0]) and self.is_whole(met[1])):
            return None
        units = self.nominal if buffer.per_count else buffer.rows // unit
        first, stop = (each.numerator * units // each.denominator for each in met)
        return unit * first, unit * stop

    def slot(self, op: Op, slots: int, buffer: Buffer) -> tuple[int, int] | None:
        """The piece's slot, which has room for its rows at every count."""
        if slots < 1 or buffer.per_count or self.share(op) is None:
            return None
        axis, piece, room = op.axis, op.piece, buffer.rows // slots
        unit = axis.per_count or 1
        units = (self.capacity or 0) if axis.per_count else axis.extent
        share = (piece.stop - piece.start) * units
        if unit * -(-share.numerator // share.denominator) > room:
            return None
        first = piece.index % slots * room
        return first, first + room
