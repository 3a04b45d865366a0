"""Pieces tile their op, and their bounds hold for every count."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphc.ir import (
    ALL,
    SPLIT,
    Access,
    Axis,
    Buffer,
    Copy,
    Mode,
    Op,
    Piece,
    Placement,
    Program,
    Rows,
    RowsKind,
)
from graphc.passes.split_pieces import cut, meeting, split_pieces
from graphc.regions import Region


def bounds(pieces: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(index, pieces) for index in range(pieces + 1))


def program(
    rows: int,
    pieces: tuple[Fraction, ...],
    *,
    per_count: int = 0,
    target: Rows = SPLIT,
) -> Program:
    shape = (rows * per_count if per_count else rows, 3)
    buffers = {name: Buffer(name, "gpu", "f32", shape, per_count=per_count) for name in ("x", "y")}
    op = Op(
        "move",
        "move",
        "gpu",
        Copy(),
        (
            Access("source", Region("x", 0, buffers["x"].nbytes), Mode.READ, SPLIT),
            Access("target", Region("y", 0, buffers["y"].nbytes), Mode.WRITE, target),
        ),
        Axis(shape[0], per_count),
        placement=Placement(pieces=pieces),
    )
    return Program("p", ("gpu",), buffers, (op,), capacity=rows if per_count else None)


shares = st.lists(st.integers(1, 9), min_size=1, max_size=9).map(
    lambda weights: tuple(
        Fraction(sum(weights[:index]), sum(weights)) for index in range(len(weights) + 1)
    )
)


@given(rows=st.integers(0, 70), pieces=shares, per_count=st.integers(0, 3))
def test_pieces_tile_their_op(rows: int, pieces: tuple[Fraction, ...], per_count: int) -> None:
    split = split_pieces(program(rows, pieces, per_count=per_count))
    whole = split.buffers["y"].nominal_rows(split.nominal) * 12
    written = [op["target"].region for op in split]
    assert written[0].start == 0
    assert written[-1].stop == whole
    assert all(a.stop == b.start for a, b in itertools.pairwise(written))
    assert all(region.start % 12 == 0 for region in written)


@given(
    capacity=st.integers(1, 40),
    first=shares,
    second=shares,
    per_count=st.integers(1, 3),
    data=st.data(),
)
def test_regions_overlap_if_real_rows_do_for_some_count(
    capacity: int,
    first: tuple[Fraction, ...],
    second: tuple[Fraction, ...],
    per_count: int,
    data: st.DataObject,
) -> None:
    """Rows that two pieces share at any count lie in regions that overlap."""
    one = program(capacity, first, per_count=per_count)
    two = program(capacity, second, per_count=per_count)
    both = Program("p", ("gpu",), one.buffers, (*one.ops, *two.ops), capacity=capacity)
    split = split_pieces(both)
    count = data.draw(st.integers(0, capacity))
    for a in split.ops[: len(first) - 1]:
        for b in split.ops[len(first) - 1 :]:
            lo_a, hi_a = a.piece.bounds(a.axis, count)
            lo_b, hi_b = b.piece.bounds(b.axis, count)
            if max(lo_a, lo_b) < min(hi_a, hi_b):
                assert a["target"].region.overlaps(b["target"].region)


@given(n=st.integers(1, 8), factor=st.integers(1, 8))
def test_counts_that_nest_have_bounds_that_nest(n: int, factor: int) -> None:
    coarse = {piece.stop for piece in cut(bounds(n))}
    assert coarse <= {piece.stop for piece in cut(bounds(n * factor))}


def test_an_op_of_one_piece_keeps_its_name() -> None:
    assert [op.name for op in split_pieces(program(8, bounds(1)))] == ["move"]


def test_pieces_are_named_after_their_op() -> None:
    split = split_pieces(program(8, bounds(2)))
    assert [op.name for op in split] == ["move/piece.0", "move/piece.1"]
    assert {op.step for op in split} == {"move"}


def test_a_capacity_of_zero_keeps_its_order() -> None:
    split = split_pieces(program(0, bounds(4), per_count=1))
    assert split.nominal == 4
    assert all(op["target"].region.nbytes for op in split)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ALL, [(0, 96), (0, 96)]),
        (Rows(RowsKind.GATHER), [(0, 96), (0, 96)]),
        (Rows(RowsKind.PIECE), [(0, 12), (12, 24)]),
        (SPLIT, [(0, 48), (48, 96)]),
        (Rows(RowsKind.BLOCKS, blocks=bounds(4)), [(0, 48), (48, 96)]),
        (Rows(RowsKind.BLOCKS, blocks=bounds(1)), [(0, 96), (0, 96)]),
    ],
)
def test_rows_say_which_bytes_a_piece_touches(rows: Rows, expected: list[tuple[int, int]]) -> None:
    split = split_pieces(program(8, bounds(2), target=rows))
    found = [(op["target"].region.start, op["target"].region.stop) for op in split]
    assert found == expected


def test_a_piece_meets_whole_blocks_on_both_sides() -> None:
    piece = Piece(1, 3, Fraction(1, 3), Fraction(2, 3))
    assert meeting(bounds(4), piece) == (Fraction(1, 4), Fraction(3, 4))


def test_blocks_begin_where_the_writers_pieces_do() -> None:
    """37 tokens of 4 rows in 8 blocks: block 3 begins at row 4 * 13 = 52, not at 3/8 of 148."""
    blocks = bounds(8)
    x = Buffer("x", "gpu", "f32", (37 * 4,))
    y = Buffer("y", "gpu", "f32", (37,))
    read = Rows(RowsKind.BLOCKS, factor=4, blocks=blocks)
    op = Op(
        "sum",
        "sum",
        "gpu",
        Copy(),
        (
            Access("source", Region("x", 0, x.nbytes), Mode.READ, read),
            Access("target", Region("y", 0, y.nbytes), Mode.WRITE, SPLIT),
        ),
        Axis(37),
        placement=Placement(pieces=blocks),
    )
    split = split_pieces(Program("p", ("gpu",), {"x": x, "y": y}, (op,)))
    assert split.ops[3]["source"].region == Region("x", 52 * 4, 72 * 4)


@pytest.mark.parametrize("per_count", [0, 1])
def test_a_row_for_each_piece_is_a_place_only_in_a_fixed_buffer(per_count: int) -> None:
    """Of 2 rows in use, row 1 is piece 3 of 4 of another op: rows of the count shift with it."""
    pieces = split_pieces(program(4, bounds(4), per_count=per_count, target=Rows(RowsKind.PIECE)))
    found = [(op["target"].region.start, op["target"].region.stop) for op in pieces]
    assert found == (
        [(0, 48)] * 4 if per_count else [(12 * row, 12 * row + 12) for row in range(4)]
    )
