"""Program -> Program: cut every op into its pieces, and write down the bytes of each.

    sums  p_rows[all] -> p_sum[all]      becomes      sums/piece.0  p_rows[block 0] -> p_sum[0:1/2]
                                                      sums/piece.1  p_rows[block 1] -> p_sum[1/2:1]

All pieces of an op stand together where the op stood, in order. Bounds are fractions of the axis;
regions of counted buffers are written at the nominal extent, on which every fraction in use is a
whole row (see ``ir``). Pieces tile their op: disjoint, complete, whole rows.

The ops between the first and the last that touch a ring take turns instead: piece 0 of each, then
piece 1 of each. A slot of the ring is free again only when the piece that lay in it was read:

    down/piece.0  up/piece.0  down/piece.1  up/piece.1  ...      piece i in slot i % slots
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, pairwise, repeat
from math import lcm

from graphc.ir import Access, Buffer, Op, Piece, Program, RowsKind
from graphc.regions import Region

WHOLE = (RowsKind.ALL, RowsKind.GATHER)  # what every piece touches from end to end


def split_pieces(program: Program) -> Program:
    """Replace every op by its pieces; an op of one piece keeps its name."""
    nominal = nominal_extent(program)
    pieces = [pieces_of(op, program.buffers, nominal) for op in program]
    ops: list[Op] = []
    for start, stop in turns(program.ops):
        ops += chain.from_iterable(zip(*pieces[start:stop], strict=True))
    return replace(program, ops=tuple(ops), nominal=nominal)


def turns(ops: Sequence[Op]) -> Iterator[tuple[int, int]]:
    """The ops in runs ``[start, stop)``: those between the first and last on a ring are one run."""
    last = {
        access.region.buffer: index
        for index, op in enumerate(ops)
        for access in op.accesses
        if access.is_ring
    }
    start = 0
    while start < len(ops):
        stop = index = start
        while index <= stop:
            rings = [last.get(each.region.buffer, index) for each in ops[index].accesses]
            stop = max(stop, *rings) if rings else stop
            index += 1
        yield start, stop + 1
        start = stop + 1


def nominal_extent(program: Program) -> int:
    """The smallest multiple of all piece denominators that reaches the capacity, at least one.

    A capacity of zero keeps its dependencies: they hold for every count and cost nothing.
    """
    if program.capacity is None:
        return 1
    cuts = {id(op.placement.pieces): op.placement.pieces for op in program}  # few, and large
    cuts |= {id(each.rows): each.rows.blocks for op in program for each in op.accesses}
    grain = lcm(*(bound.denominator for bounds in cuts.values() for bound in bounds))
    return max(1, -(-program.capacity // grain)) * grain


def pieces_of(op: Op, buffers: Mapping[str, Buffer], nominal: int) -> list[Op]:
    pieces = cut(op.placement.pieces)
    columns = [
        accesses_of(each, buffers[each.region.buffer], pieces, nominal) for each in op.accesses
    ]
    touched = zip(*columns, strict=True) if columns else repeat(())
    is_cut = len(pieces) > 1
    return [
        Op(
            f"{op.name}/piece.{piece.index}" if is_cut else op.name,
            op.step,
            op.device,
            op.work,
            accesses,
            op.axis,
            piece,
            op.placement,
            op.span,
            op.family,
        )
        for piece, accesses in zip(pieces, touched, strict=False)
    ]


@lru_cache(maxsize=1024)
def cut(bounds: tuple[Fraction, ...]) -> tuple[Piece, ...]:
    """Pieces from their bounds, 0 to 1.

    >>> [str(piece.stop) for piece in cut((Fraction(0), Fraction(1, 3), Fraction(1)))]
    ['1/3', '1']
    """
    of = len(bounds) - 1
    return tuple(Piece(index, of, bounds[index], bounds[index + 1]) for index in range(of))


def accesses_of(
    access: Access, buffer: Buffer, pieces: tuple[Piece, ...], nominal: int
) -> list[Access]:
    """What each piece touches of one argument; pieces that touch all of it share the access."""
    nbytes = buffer.row_nbytes
    if access.rows.kind in WHOLE:
        stop = buffer.nominal_rows(nominal) * nbytes
        if (access.region.start, access.region.stop) != (0, stop):
            access = replace(access, region=Region(buffer.name, 0, stop))
        return [access] * len(pieces)
    return [
        Access(
            access.argument,
            Region(buffer.name, start * nbytes, stop * nbytes),
            access.mode,
            access.rows,
            access.span,
            access.peer,
        )
        for start, stop in rows_of(access, buffer, pieces, nominal)
    ]


def rows_of(
    access: Access, buffer: Buffer, pieces: tuple[Piece, ...], nominal: int
) -> Iterable[tuple[int, int]]:
    """The rows of one argument that each piece touches."""
    rows = buffer.nominal_rows(nominal)
    unit = buffer.per_count or access.rows.factor  # rows that no bound divides

    def at(bound: Fraction) -> int:
        return unit * (rows // unit * bound.numerator // bound.denominator)

    match access.rows.kind:
        case RowsKind.ALL | RowsKind.GATHER:
            return [(0, rows)] * len(pieces)
        case RowsKind.ROW:
            return [(access.rows.factor, access.rows.factor + 1)] * len(pieces)
        case RowsKind.PIECE if buffer.per_count:
            # In which piece of another op the row lies hangs on the count.
            return [(0, rows)] * len(pieces)
        case RowsKind.PIECE:
            return [(piece.index, piece.index + 1) for piece in pieces]
        case RowsKind.RING:
            slot_rows = buffer.rows // access.rows.factor
            slots = [piece.index % access.rows.factor * slot_rows for piece in pieces]
            return [(slot, slot + slot_rows) for slot in slots]
        case RowsKind.SPLIT:
            return pairwise([at(pieces[0].start), *(at(piece.stop) for piece in pieces)])
        case RowsKind.BLOCKS:
            met = [meeting(access.rows.blocks, piece) for piece in pieces]
            return [(at(first), at(last)) for first, last in met]


@lru_cache(maxsize=4096)
def meeting(blocks: tuple[Fraction, ...], piece: Piece) -> tuple[Fraction, Fraction]:
    """The bounds of the whole blocks that meet the piece.

    >>> [str(bound) for bound in meeting((Fraction(0), Fraction(1, 2), Fraction(1)), Piece())]
    ['0', '1']
    """
    first = blocks[max(0, bisect_right(blocks, piece.start) - 1)]
    last = blocks[min(len(blocks) - 1, bisect_left(blocks, piece.stop))]
    return first, last
