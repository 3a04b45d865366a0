"""The proof rests on contracts, so every kernel's meaning is held to its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    CASES,
    THREE,
    UNEQUAL,
    WHOLE,
    Call,
    Case,
    Guarded,
    Lent,
    by_argument,
    catalog,
    hold_to_contract,
    make_inputs,
    run_function,
    run_reference,
)

from graphc.dtypes import dtype
from graphc.reference import convert as reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_reference_keeps_to_its_contract(case: Case) -> None:
    hold_to_contract(case, run_reference)


def test_every_kernel_has_cases() -> None:
    assert {case.kernel for case in CASES} == set(catalog().names())


def test_names_of_cases_differ() -> None:
    names = [str(case) for case in CASES]
    assert len(set(names)) == len(names)


ROW_WISE = [
    case
    for case in CASES
    if case.cut != WHOLE and all(each.rows.kind != "piece" for each in case.given.values())
]


@pytest.mark.parametrize("case", ROW_WISE, ids=str)
def test_a_rows_bits_do_not_depend_on_the_cut(case: Case) -> None:
    inputs = make_inputs(case)
    pieces = run_all(case, inputs)
    whole = run_all(replace(case, cut=WHOLE), inputs)
    for name, array in whole.items():
        assert array.tobytes() == pieces[name].tobytes(), name


def run_all(case: Case, inputs: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {name: each.copy() for name, each in inputs.items()}
    for name in case.arrays:
        if name not in arrays:
            arrays[name] = np.zeros(case.shape_of(name), dtype(case.dtype_of(name)).numpy)
    guarded = {name: unguarded(each) for name, each in arrays.items()}
    for index, (lo, hi) in enumerate(case.bounds):
        call = Call(case, index, lo, hi)
        run_reference(call, by_argument(case, guarded))
    return {name: guarded[name].data for name, e in case.arrays.items() if e.access != "read"}


def unguarded(array: Any) -> Guarded:
    raw = np.frombuffer(bytearray(array.tobytes()), np.uint8)
    return Guarded(raw, 0, array.shape, array.dtype, False)


@given(
    tokens=st.integers(0, 40),
    top_k=st.integers(1, 6),
    ends=st.integers(2, 20),
    first=st.integers(0, 9),
    cut=st.sampled_from([WHOLE, THREE, UNEQUAL]),
    inputs=st.sampled_from(["uniform", "one expert", "foreign"]),
    data=st.data(),
)
def test_grouping_keeps_to_its_contract_at_any_size(
    tokens: int, top_k: int, ends: int, first: int, cut: Any, inputs: str, data: st.DataObject
) -> None:
    symbols = {"tokens": tokens, "top_k": top_k, "pieces": len(cut) - 1, "ends": ends}
    count = data.draw(st.none() | st.integers(0, tokens))
    case = Case(
        "group_rows", symbols, scalars={"first": first}, cut=cut, count=count, inputs=inputs
    )
    hold_to_contract(case, run_reference)


@given(
    n=st.integers(0, 30),
    m=st.integers(1, 40),
    types=st.sampled_from([("f32", "f16"), ("f16", "f32"), ("f32", "bf16"), ("i32", "i32")]),
    cut=st.sampled_from([WHOLE, THREE, UNEQUAL]),
)
def test_conversion_keeps_to_its_contract_at_any_size(
    n: int, m: int, types: tuple[str, str], cut: Any
) -> None:
    dtypes = dict(zip("xy", types, strict=True))
    hold_to_contract(Case("convert", {"n": n, "m": m}, dtypes, cut=cut), run_reference)


# Every way in which a kernel can break its word, and what the harness says of it.


def writes_a_row_too_many(*, x: Any, y: Any, lo: int, hi: int) -> None:
    y[lo : hi + 1] = x[lo : hi + 1].astype(y.dtype)


def writes_before_its_buffer(*, x: Any, y: Any, lo: int, hi: int) -> None:
    reference.convert(x=x, y=y, lo=lo, hi=hi)
    base = y
    while base.base is not None and isinstance(base.base, np.ndarray):
        base = base.base
    base[100] ^= 0xFF


def leaves_a_row_out(*, x: Any, y: Any, lo: int, hi: int) -> None:
    reference.convert(x=x, y=y, lo=lo, hi=hi - 1)


def leaves_an_element_out(*, x: Any, y: Any, lo: int, hi: int) -> None:
    kept = y[hi - 1, -1].copy()
    reference.convert(x=x, y=y, lo=lo, hi=hi)
    y[hi - 1, -1] = kept


def reads_the_next_row(*, x: Any, y: Any, lo: int, hi: int) -> None:
    reference.convert(x=x, y=y, lo=lo, hi=hi)
    y[hi - 1] = x[hi].astype(y.dtype)


def reads_what_it_should_write(*, x: Any, y: Any, lo: int, hi: int) -> None:
    y[lo:hi] = x[lo:hi].astype(y.dtype) + y[lo:hi] * 0


def writes_its_input(*, x: Any, y: Any, lo: int, hi: int) -> None:
    reference.convert(x=x, y=y, lo=lo, hi=hi)
    x[lo] = 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (writes_a_row_too_many, "wrote byte"),
        (writes_before_its_buffer, "wrote byte"),
        (leaves_a_row_out, "was not written"),
        (leaves_an_element_out, "was not written"),
        (reads_the_next_row, "outside the contract"),
        (reads_what_it_should_write, "outside the contract"),
        (writes_its_input, "read-only"),
    ],
)
def test_an_access_outside_the_contract_fails(wrong: Callable[..., None], message: str) -> None:
    case = Case("convert", {"n": 8, "m": 6}, {"x": "f32", "y": "f16"}, cut=THREE)
    with (
        pytest.raises((AssertionError, ValueError), match=message),
        np.errstate(all="ignore"),
    ):
        hold_to_contract(case, lambda call, arguments: run_function(wrong, call, arguments))


def test_a_write_to_an_input_behind_its_back_fails() -> None:
    def wrong(call: Call, arguments: Mapping[str, Lent]) -> None:
        run_reference(call, arguments)
        x = arguments["x"]
        assert isinstance(x, Guarded)
        x.raw[x.start] ^= 1

    case = Case("convert", {"n": 8, "m": 6}, {"x": "f32", "y": "f16"})
    with pytest.raises(AssertionError, match="it may only read"):
        hold_to_contract(case, wrong)


def test_writing_another_pieces_row_fails() -> None:
    def wrong(*, offsets: Any, piece: int, slot: Any, lo: int, hi: int) -> None:
        offsets[piece] = 0
        offsets[(piece + 1) % len(offsets)] = 0
        slot[lo:hi] = -1

    symbols = {"tokens": 9, "top_k": 2, "pieces": 3, "ends": 4}
    case = Case("group_rows", symbols, scalars={"first": 0}, cut=THREE, inputs="uniform")
    with pytest.raises(AssertionError, match="of 'offsets', which is outside rows"):
        hold_to_contract(case, lambda call, arguments: run_function(wrong, call, arguments))
