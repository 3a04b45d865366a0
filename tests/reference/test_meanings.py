"""The references say what they should: against plain loops, f64, and each other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphc.reference import moe
from graphc.reference.convert import convert, narrow, widen

Array = NDArray[Any]
F16, BF16, F32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def bits(values: Array) -> list[int]:
    return [int(each) for each in values.view(f"u{values.dtype.itemsize}").reshape(-1)]


@pytest.mark.parametrize("kind", [F16, BF16])
def test_widening_and_narrowing_again_changes_nothing(kind: np.dtype[Any]) -> None:
    every = np.arange(65536, dtype=np.uint16).view(kind)
    again = narrow(widen(every), kind)
    is_nan = np.isnan(every.astype(np.float32))
    is_infinite = np.isinf(every.astype(np.float32))
    kept = ~is_nan & ~(is_infinite & (kind == F16))
    assert (again.view(np.uint16)[kept] == every.view(np.uint16)[kept]).all()
    assert np.isnan(again[is_nan].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (65504.0, 65504.0), (65519.0, 65504.0), (65520.0, 65504.0), (1e30, 65504.0),
        (-1e30, -65504.0), (np.inf, 65504.0), (-np.inf, -65504.0),
        (2.0**-24, 2.0**-24), (2.0**-25, 0.0), (1.5 * 2.0**-24, 2.0**-23),
        (1 + 2.0**-11, 1.0), (1 + 3 * 2.0**-11, 1 + 2.0**-9),
    ],
)  # fmt: skip
def test_narrowing_to_f16_saturates_and_rounds_to_even(value: float, expected: float) -> None:
    assert float(narrow(np.array([value], np.float32), F16)[0]) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 + 2.0**-8, 1.0), (1 + 3 * 2.0**-8, 1 + 2.0**-6), (np.inf, np.inf),
        (3.4e38, np.inf), (-3.4e38, -np.inf), (65520.0, 65536.0),
    ],
)  # fmt: skip
def test_narrowing_to_bf16_overflows_as_ieee_does(value: float, expected: float) -> None:
    assert float(narrow(np.array([value], np.float32), BF16)[0]) == expected


@pytest.mark.parametrize("kind", [F16, BF16])
def test_any_nan_narrows_to_the_canonical_one(kind: np.dtype[Any]) -> None:
    nans = np.array([0x7FC00000, 0xFFC00001, 0x7F800001], np.uint32).view(np.float32)
    assert bits(narrow(nans, kind)) == [0x7FFF] * 3


def test_bytes_of_one_dtype_are_copied_as_they_are() -> None:
    x = np.array([[0x7F800001, 0xFFC12345]], np.uint32).view(np.float32)
    y = np.zeros_like(x)
    convert(x=x, y=y, lo=0, hi=1)
    assert bits(x) == bits(y)


def test_bf16_becomes_f16_by_way_of_f32() -> None:
    x = np.arange(65536, dtype=np.uint16).view(BF16).reshape(256, 256)
    y = np.zeros(x.shape, F16)
    convert(x=x, y=y, lo=0, hi=256)
    assert bits(y) == bits(narrow(widen(x), F16))


@pytest.mark.parametrize("hidden", [1, 4, 7, 1024, 1025, 2560])
def test_rms_mix_is_near_the_exact_result(hidden: int) -> None:
    generator = np.random.default_rng(hidden)
    x = generator.standard_normal((5, hidden)).astype(np.float32) * 3
    w = generator.standard_normal(hidden).astype(np.float32)
    mixed, half = np.zeros_like(x), np.zeros(x.shape, F16)
    moe.rms_mix(x=x, w=w, mixed=mixed, mixed_h=half, lo=0, hi=5)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(mixed, exact, rtol=2e-6, atol=1e-7)
    assert bits(half) == bits(narrow(mixed, F16))


def sum_in_order(row: Array) -> np.float32:
    """The sum of rms_mix as its contract says it, element by element."""
    partial = [np.float32(0)] * 256
    for start in range(0, len(row), 4):
        thread = start // 4 % 256
        for value in row[start : start + 4]:
            partial[thread] = partial[thread] + value * value
    warps = [partial[i : i + 32] for i in range(0, 256, 32)]
    for step in (16, 8, 4, 2, 1):
        warps = [[warp[i] + warp[i ^ step] for i in range(32)] for warp in warps]
    total = warps[0][0]
    for warp in warps[1:]:
        total = total + warp[0]
    return total


@pytest.mark.parametrize("hidden", [1, 5, 129, 1030, 2560])
def test_the_sum_of_squares_has_the_order_that_the_contract_names(hidden: int) -> None:
    rows = np.random.default_rng(hidden).standard_normal((2, hidden)).astype(np.float32)
    found = moe.sum_of_squares(rows)
    assert bits(found) == bits(np.array([sum_in_order(row) for row in rows], np.float32))


def route(logits: Array, top_k: int) -> tuple[Array, Array]:
    tokens, experts = logits.shape
    ids, weight = np.zeros((tokens, top_k), np.int32), np.zeros((tokens, top_k), np.float32)
    moe.router(logits=logits, ids=ids, weight=weight, experts=experts, top_k=top_k, lo=0, hi=tokens)
    return ids, weight


def test_equal_logits_go_to_the_lower_id() -> None:
    logits = np.array([[1, 3, 2, 3, 2, 3]], np.float32)
    ids, weight = route(logits, 4)
    assert ids.tolist() == [[1, 3, 5, 2]]
    assert weight[0, 0] == weight[0, 1] == weight[0, 2] > weight[0, 3]
    assert weight.sum() == pytest.approx(1)


def test_zeros_of_either_sign_are_equal() -> None:
    ids, _ = route(np.array([[-0.0, 0.0, -1.0, 0.0]], np.float32), 3)
    assert ids.tolist() == [[0, 1, 3]]


@given(
    st.lists(st.lists(st.floats(width=32), min_size=6, max_size=6), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_any_logits_give_valid_distinct_ids_and_finite_weights(
    rows: list[list[float]], top_k: int
) -> None:
    ids, weight = route(np.array(rows, np.float32), top_k)
    assert all(len(set(row)) == top_k and set(row) <= set(range(6)) for row in ids.tolist())
    assert np.isfinite(weight).all()
    assert (weight >= 0).all()
    assert (weight.sum(axis=1) <= 1.0001).all()


def test_broken_logits_have_the_documented_result() -> None:
    nan, inf = np.nan, np.inf
    rows = [[nan, nan, nan], [nan, 1, 2], [inf, 5, inf], [-inf, -inf, -inf], [-inf, 0, nan]]
    ids, weight = route(np.array(rows, np.float32), 2)
    assert ids.tolist() == [[0, 1], [2, 1], [0, 2], [0, 1], [1, 0]]
    assert weight[0].tolist() == weight[3].tolist() == [0, 0]
    assert weight[2].tolist() == [0.5, 0.5]
    assert weight[4].tolist() == [1, 0]


def group(ids: Array, first: int, experts: int, lo: int, hi: int) -> tuple[Array, Array, Array]:
    tokens, top_k = ids.shape
    offsets = np.zeros((1, experts + 1), np.int32)
    src = np.full((tokens, top_k), -7, np.int32)
    slot = np.full((tokens, top_k), -7, np.int32)
    moe.group_rows(
        ids=ids, offsets=offsets, src=src, slot=slot, first=first, ends=experts + 1,
        top_k=top_k, lo=lo, hi=hi, piece=0,
    )  # fmt: skip
    return offsets[0], src, slot


@given(
    ids=st.lists(st.lists(st.integers(-1, 9), min_size=3, max_size=3), max_size=12),
    first=st.integers(0, 5),
    experts=st.integers(1, 5),
    data=st.data(),
)
def test_grouping_by_the_rule(
    ids: list[list[int]], first: int, experts: int, data: st.DataObject
) -> None:
    hi = data.draw(st.integers(0, len(ids)))
    lo = data.draw(st.integers(0, hi))
    array = np.array(ids, np.int32).reshape(len(ids), 3)
    offsets, src, slot = group(array, first, experts, lo, hi)
    row = lo * 3
    for expert in range(experts):
        assert offsets[expert] == row
        for token in range(lo, hi):
            for k in range(3):
                if array[token, k] == first + expert:
                    assert src.reshape(-1)[row] == token
                    assert slot[token, k] == row
                    row += 1
    assert offsets[experts] == row
    outside = (array[lo:hi] < first) | (array[lo:hi] >= first + experts)
    assert (slot[lo:hi][outside] == -1).all()


def sums_in_order(rows: Array, slot: Array, weight: Array, hidden: int) -> Array:
    result = np.zeros((len(slot), hidden), np.float32)
    for token, slots in enumerate(slot):
        for d in range(hidden):
            total = np.float32(0)
            for k, row in enumerate(slots):
                if row >= 0:
                    total = total + weight[token, k] * np.float32(rows.reshape(-1, hidden)[row, d])
            result[token, d] = total
    return result


@pytest.mark.parametrize("kind", [F32, F16, BF16])
def test_weighted_sums_add_in_the_order_of_k(kind: np.dtype[Any]) -> None:
    generator = np.random.default_rng(3)
    tokens, top_k, hidden = 9, 6, 5
    rows = generator.standard_normal((tokens, top_k, hidden)).astype(np.float32).astype(kind)
    slot = generator.permutation(tokens * top_k).reshape(tokens, top_k).astype(np.int32)
    slot[generator.random(slot.shape) < 0.4] = -1
    weight = generator.random((tokens, top_k)).astype(np.float32)
    sums = np.zeros((tokens, hidden), np.float32)
    moe.weighted_sums(rows=rows, slot=slot, weight=weight, sum=sums, lo=0, hi=tokens)
    expected = sums_in_order(rows, slot, weight, hidden)
    assert bits(sums) == bits(expected)

    shared = generator.standard_normal((tokens, hidden)).astype(np.float32)
    landed = generator.standard_normal((tokens, hidden)).astype(np.float32)
    for beside in (shared, None):
        out = landed.copy()
        moe.moe_combine(
            rows=rows, slot=slot, weight=weight, shared=beside, out=out, lo=0, hi=tokens
        )
        wanted = expected + landed
        assert bits(out) == bits(wanted if beside is None else wanted + beside)


def test_a_token_without_rows_gets_zero_and_not_the_rows_nan() -> None:
    rows = np.full((2, 1, 3), np.nan, np.float32)
    slot, weight = np.full((2, 1), -1, np.int32), np.ones((2, 1), np.float32)
    sums = np.ones((2, 3), np.float32)
    moe.weighted_sums(rows=rows, slot=slot, weight=weight, sum=sums, lo=0, hi=2)
    assert sums.tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("kind", [F32, F16, BF16])
def test_residual_add_adds_in_f32(kind: np.dtype[Any]) -> None:
    generator = np.random.default_rng(4)
    x = generator.standard_normal((4, 5)).astype(np.float32)
    y = generator.standard_normal((4, 5)).astype(np.float32).astype(kind)
    expected = x.copy()
    expected[1:3] += y[1:3].astype(np.float32)
    moe.residual_add(x=x, y=y, lo=1, hi=3)
    assert bits(x) == bits(expected)
