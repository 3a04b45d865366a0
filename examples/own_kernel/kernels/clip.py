"""What ``clip.cu.j2`` means."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def clip(*, x: Array, y: Array, low: float, high: float, lo: int, hi: int) -> None:
    """Touches the rows [lo, hi) and no others, as the contract says."""
    y[lo:hi] = np.fmin(np.fmax(x[lo:hi], np.float32(low)), np.float32(high))
