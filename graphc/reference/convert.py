"""Conversion between element types, and the narrowing that every other reference uses."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

F16_MAX = np.float32(65504)
CANONICAL_NAN = 0x7FFF  # what the hardware makes of any NaN that it narrows
WIDE_NAN = 0x7FFFFFFF  # and of one of f16 that it widens


def convert(
    *, x: Array, y: Array, lo: int, hi: int, ring_x: bool = False, ring_y: bool = False
) -> None:
    """``y = x`` in the dtype of ``y``; among floats by way of f32.

    An argument in a ring begins at row ``lo``.
    """
    source = x[: hi - lo] if ring_x else x[lo:hi]
    target = y[: hi - lo] if ring_y else y[lo:hi]
    target[...] = source if x.dtype == y.dtype else narrow(widen(source), y.dtype)


def widen(values: Array) -> NDArray[np.float32]:
    """f32 of f32, f16 or bf16: exact."""
    wide: NDArray[np.float32] = values.astype(np.float32)
    if values.dtype == np.float16:
        wide.view(np.uint32)[np.isnan(wide)] = WIDE_NAN
    return wide


def narrow(values: NDArray[np.float32], dtype: np.dtype[Any]) -> Array:
    """f32 rounded to nearest even; f16 saturates at +-65504, infinities too; NaN stays NaN."""
    if dtype == np.float32:
        return values
    if dtype == np.float16:
        result: Array = np.clip(values, -F16_MAX, F16_MAX).astype(np.float16)
    elif dtype == ml_dtypes.bfloat16:
        with np.errstate(invalid="ignore"):
            result = values.astype(ml_dtypes.bfloat16)
    else:
        raise TypeError(f"cannot narrow to {dtype}")
    result.view(np.uint16)[np.isnan(values)] = CANONICAL_NAN
    return result
