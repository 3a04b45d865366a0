"""The references of the matrix products: right against f64, and blind to how rows are batched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from graphc.reference import gemm

Array = NDArray[Any]
TYPES = [np.float16, ml_dtypes.bfloat16]


def values(seed: int, *shape: int, dtype: Any = np.float16, scale: float = 1.0) -> Array:
    drawn = np.random.default_rng(seed).standard_normal(shape) * scale
    return np.asarray(drawn, np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("depth", "columns"), [(8, 8), (64, 64), (200, 72), (2560, 40), (1, 1)])
def test_a_rows_bits_do_not_depend_on_its_place_in_the_batch(
    dtype: Any, depth: int, columns: int
) -> None:
    x, w = values(1, 61, depth, dtype=dtype), values(2, columns, depth, dtype=dtype)
    whole = gemm.product(x, w)
    for start, stop in [(0, 1), (1, 61), (7, 30), (16, 48), (60, 61)]:
        assert whole[start:stop].tobytes() == gemm.product(x[start:stop], w).tobytes()
    order = np.random.default_rng(3).permutation(61)
    assert whole[order].tobytes() == gemm.product(x[order], w).tobytes()


def test_a_product_is_that_of_f64() -> None:
    x, w = values(1, 37, 2560), values(2, 48, 2560)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    np.testing.assert_allclose(gemm.product(x, w), exact, rtol=1e-4, atol=1e-3)


def test_an_infinite_neighbour_does_not_spoil_a_row() -> None:
    x, w = values(1, 4, 16), values(2, 8, 16)
    clean = gemm.product(x, w)
    x[2] = np.inf
    spoilt = gemm.product(x, w)
    assert not np.isfinite(spoilt[2]).any()
    assert np.delete(spoilt, 2, 0).tobytes() == np.delete(clean, 2, 0).tobytes()


def test_f16_saturates_and_keeps_nan() -> None:
    given = np.array([1e9, -1e9, np.nan, np.inf, 1.5], np.float32)
    found = gemm.narrow(given, np.dtype(np.float16))
    np.testing.assert_array_equal(found, np.array([65504, -65504, np.nan, 65504, 1.5], np.float16))


def test_grouped_rows_go_through_their_expert_and_the_rest_stay() -> None:
    tokens, top_k, hidden, ff, experts = 5, 2, 16, 8, 3
    x = values(1, tokens, hidden)
    w_up, w_down = values(2, experts, 2 * ff, hidden), values(3, experts, hidden, ff)
    src = np.array([0, 4, 2, 1, 3, 0, 0, 0, 0, 0], np.int32)
    offsets = np.array([[0, 2, 2, 5]], np.int32)
    h = np.full((tokens * top_k, ff), np.nan, np.float16)
    rows = np.full((tokens * top_k, hidden), np.nan, np.float32)
    gemm.grouped_up(x=x, src=src, offsets=offsets, w=w_up, h=h, piece=0)
    gemm.grouped_down(h=h, offsets=offsets, w=w_down, rows=rows, piece=0)
    for row, expert in [(0, 0), (1, 0), (2, 2), (3, 2), (4, 2)]:
        both = x[src[row]].astype(np.float64) @ w_up[expert].astype(np.float64).T
        mid = both[:ff] / (1 + np.exp(-both[:ff])) * both[ff:]
        np.testing.assert_allclose(h[row], mid, rtol=2e-3, atol=1e-3)
        exact = h[row].astype(np.float64) @ w_down[expert].astype(np.float64).T
        np.testing.assert_allclose(rows[row], exact, rtol=1e-4, atol=1e-4)
    assert np.isnan(h[5:]).all()
    assert np.isnan(rows[5:]).all()


def test_dense_touches_its_own_rows_only_and_scales_by_the_gate() -> None:
    x, w, gate = values(1, 9, 24), values(2, 8, 24), values(3, 9, 1, dtype=np.float32)
    y = np.full((9, 8), np.nan, np.float32)
    gemm.dense(x=x, w=w, gate=gate, y=y, lo=2, hi=7)
    exact = x[2:7].astype(np.float64) @ w.astype(np.float64).T / (1 + np.exp(-gate[2:7]))
    np.testing.assert_allclose(y[2:7], exact, rtol=1e-4, atol=1e-4)
    assert np.isnan(np.delete(y, slice(2, 7), 0)).all()


def test_dense_up_is_the_gated_product() -> None:
    x, w = values(1, 6, 24), values(2, 16, 24)
    h = np.zeros((6, 8), np.float16)
    gemm.dense_up(x=x, w=w, h=h, lo=0, hi=6)
    both = x.astype(np.float64) @ w.astype(np.float64).T
    exact = both[:, :8] / (1 + np.exp(-both[:, :8])) * both[:, 8:]
    np.testing.assert_allclose(h, exact, rtol=2e-3, atol=1e-3)
