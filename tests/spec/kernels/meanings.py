"""What the kernels of these tests do, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def give(*, x: Array, y: tuple[Array, ...], rank: int) -> None:
    for each in y:
        each[rank] = x.sum(0)


def spread(
    *, x: Array, y: tuple[Array, ...] | None, status: Array | None, rank: int, lo: int, hi: int
) -> None:
    """Row i of rank r goes to row ``r * n + i`` of rank ``(r + i) % ranks``; row 7 has no place."""
    if status is not None and lo <= 7 < hi:
        status[:2] = 1, 7
    for i in range(lo, hi) if y is not None else ():
        assert y is not None
        y[(rank + i) % len(y)][rank * len(x) + i] = x[i]


def fetch(*, x: tuple[Array, ...], y: Array) -> None:
    y[...] = sum(each.astype(np.float32) for each in x)


def tally(*, x: Array, y: tuple[Array, ...], weight: int) -> None:
    for each in y:
        each[:] += weight * x.sum(0)
