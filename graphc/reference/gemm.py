"""The matrix products of the layer in numpy: grouped_up, grouped_down, dense, dense_up.

All go through ``product``: f32 products and sums of the 16-bit values, one row at a time. A row's
bits then depend on the row and its weights alone, not on the batch that it comes in; even in blocks
of one shape, BLAS adds in another order at another place in the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]


def grouped_up(*, x: Array, src: Array, offsets: Array, w: Array, h: Array, piece: int) -> None:
    """Rows of each expert: silu(x . gate) * (x . up), for the tokens that ``src`` names."""
    tokens, results = src.reshape(-1), by_row(h)
    for expert, rows in expert_rows(offsets[piece]):
        results[rows] = narrow(gated(product(x[tokens[rows]], w[expert])), h.dtype)


def grouped_down(*, h: Array, offsets: Array, w: Array, rows: Array, piece: int) -> None:
    """Rows of each expert: h . w."""
    inputs, results = by_row(h), by_row(rows)
    for expert, own in expert_rows(offsets[piece]):
        results[own] = narrow(product(inputs[own], w[expert]), rows.dtype)


def dense(*, x: Array, w: Array, gate: Array | None, y: Array, lo: int, hi: int) -> None:
    """x . w, times sigmoid(gate) where there is a gate."""
    result = product(x[lo:hi], w)
    if gate is not None:
        result *= sigmoid(gate[lo:hi])
    y[lo:hi] = narrow(result, y.dtype)


def dense_up(*, x: Array, w: Array, h: Array, lo: int, hi: int) -> None:
    """silu(x . gate) * (x . up)."""
    h[lo:hi] = narrow(gated(product(x[lo:hi], w)), h.dtype)


def by_row(pairs: Array) -> Array:
    """One row for each pair of a token and a choice: a view, so that writes arrive."""
    return pairs.reshape(-1, pairs.shape[-1])


def expert_rows(bounds: Array) -> Iterator[tuple[int, slice]]:
    """The experts that have rows, and which."""
    for expert, (start, stop) in enumerate(pairwise(bounds.tolist())):
        if start < stop:
            yield expert, slice(start, stop)


def product(x: Array, w: Array) -> Floats:
    """x . w^T in f32, row by row.

    >>> product(np.ones((2, 3), np.float16), np.ones((1, 3), np.float16)).tolist()
    [[3.0], [3.0]]
    """
    weights = np.ascontiguousarray(w.astype(np.float32).T)
    rows = x.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        # A stack of products of one row each: every one has the same shape, so adds in one order.
        result: Floats = np.matmul(rows[:, None, :], weights)[:, 0, :]
    return result


def gated(product: Floats) -> Floats:
    """silu(gate) * up, of rows that hold first all gates, then all ups."""
    gate, up = np.split(product, 2, axis=1)
    result: Floats = gate * sigmoid(gate) * up
    return result


def sigmoid(value: Array) -> Floats:
    with np.errstate(over="ignore"):
        result: Floats = np.float32(1) / (np.float32(1) + np.exp(-value))
    return result


def narrow(value: Floats, dtype: np.dtype[Any]) -> Array:
    """Rounded to the nearest even; f16 saturates at its largest finite values and keeps NaN."""
    if dtype == np.float16:
        value = np.clip(value, np.float32(-65504), np.float32(65504))
    return value.astype(dtype)
