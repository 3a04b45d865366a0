"""The element types of buffers: their size, their numpy dtype and their C type."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type."""

    name: str
    nbytes: int
    ctype: str  # as kernels see it; 16-bit floats travel as their bits

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return numpy_dtype(self.name)

    @property
    def is_float(self) -> bool:
        return self.name in FLOATS

    @property
    def limits(self) -> tuple[int | float, int | float]:
        """The least and the largest finite value.

        >>> dtype("i8").limits, dtype("fp8_e4m3").limits
        ((-128, 127), (-448.0, 448.0))
        """
        if self.is_float:
            return -LARGEST[self.name], LARGEST[self.name]
        bits = 8 * self.nbytes
        return (0, 2**bits - 1) if self.name[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


LARGEST = {
    "f64": sys.float_info.max,
    "f32": (2 - 2**-23) * 2.0**127,
    "f16": 65504.0,
    "bf16": (2 - 2**-7) * 2.0**127,
    "fp8_e4m3": 448.0,
}
FLOATS = tuple(LARGEST)

DTYPES: dict[str, DType] = {
    name: DType(name, nbytes, ctype)
    for name, nbytes, ctype in (
        ("f64", 8, "double"),
        ("f32", 4, "float"),
        ("f16", 2, "unsigned short"),
        ("bf16", 2, "unsigned short"),
        ("fp8_e4m3", 1, "unsigned char"),
        ("i64", 8, "long long"),
        ("u64", 8, "unsigned long long"),
        ("i32", 4, "int"),
        ("u32", 4, "unsigned int"),
        ("i16", 2, "short"),
        ("i8", 1, "signed char"),
        ("u8", 1, "unsigned char"),
    )
}


def dtype(name: str) -> DType:
    """The element type of that name.

    >>> dtype("bf16").nbytes
    2
    """
    return DTYPES[name]


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype of that name; numpy is imported when arrays are made, not to compile.

    >>> numpy_dtype("f16").name
    'float16'
    """
    import numpy as np

    if name in ("bf16", "fp8_e4m3"):
        import ml_dtypes

        narrow = {"bf16": ml_dtypes.bfloat16, "fp8_e4m3": ml_dtypes.float8_e4m3fn}
        return np.dtype(narrow[name])  # type: ignore[no-any-return]
    kinds = {"f": "float", "i": "int", "u": "uint"}
    return np.dtype(f"{kinds[name[0]]}{name[1:]}")
