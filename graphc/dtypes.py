"""The element types of buffers: their size, their numpy dtype and their C type."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type."""

    name: str
    numpy: np.dtype[np.generic]
    ctype: str  # as kernels see it; 16-bit floats travel as their bits

    @property
    def nbytes(self) -> int:
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.name in FLOATS


FLOATS = ("f64", "f32", "f16", "bf16", "fp8_e4m3")

DTYPES: dict[str, DType] = {
    name: DType(name, np.dtype(kind), ctype)
    for name, kind, ctype in (
        ("f64", np.float64, "double"),
        ("f32", np.float32, "float"),
        ("f16", np.float16, "unsigned short"),
        ("bf16", ml_dtypes.bfloat16, "unsigned short"),
        ("fp8_e4m3", ml_dtypes.float8_e4m3fn, "unsigned char"),
        ("i64", np.int64, "long long"),
        ("u64", np.uint64, "unsigned long long"),
        ("i32", np.int32, "int"),
        ("u32", np.uint32, "unsigned int"),
        ("i16", np.int16, "short"),
        ("i8", np.int8, "signed char"),
        ("u8", np.uint8, "unsigned char"),
    )
}


def dtype(name: str) -> DType:
    """The element type of that name.

    >>> dtype("bf16").nbytes
    2
    """
    return DTYPES[name]
