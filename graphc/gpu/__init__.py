"""The only door to CUDA: the driver behind a protocol, NVRTC, and what a machine can do."""

from __future__ import annotations

from functools import lru_cache

from graphc.gpu.protocol import Driver
from graphc.text.diagnostics import CudaError


@lru_cache(maxsize=1)
def open_driver() -> Driver:
    """The process's CUDA driver, initialised; a ``CudaError`` that says what to do without one."""
    try:
        from graphc.gpu.driver import CudaDriver
    except ImportError as problem:
        raise CudaError(
            "import cuda.bindings",
            "NOT_INSTALLED",
            f"{problem}; install them with: pip install 'graphc[cuda13]' "
            "(graphc[cuda12] for a driver older than 580), or use the reference backend",
        ) from None
    return CudaDriver()
