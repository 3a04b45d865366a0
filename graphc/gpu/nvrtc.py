"""NVRTC: CUDA C++ source to a cubin, on any machine, with or without a driver.

The only file that imports ``cuda.bindings.nvrtc``. What goes wrong is either the source's fault
(``Refused``, with NVRTC's log) or the machine's (``CudaError``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from graphc.text.diagnostics import CudaError

INSTALL = "install them with: pip install graphc[cuda13]"


class Refused(Exception):
    """NVRTC compiled, and found mistakes in the source; ``log`` lists them."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(log)


@dataclass(slots=True)
class Counter:
    """How often this process has called the compiler: what the tests of its caches observe."""

    compiles: int = 0


counter = Counter()


@cache
def version() -> tuple[int, int]:
    """The version of the NVRTC at hand, such as (13, 0)."""
    nvrtc = bindings()
    status, major, minor = nvrtc.nvrtcVersion()
    check(nvrtc, status, "nvrtcVersion")
    return int(major), int(minor)


@cache
def architectures() -> tuple[int, ...]:
    """What this NVRTC compiles for: (75, 80, ..., 90, ...)."""
    nvrtc = bindings()
    status, number = nvrtc.nvrtcGetNumSupportedArchs()
    check(nvrtc, status, "nvrtcGetNumSupportedArchs")
    status, found = nvrtc.nvrtcGetSupportedArchs()
    check(nvrtc, status, "nvrtcGetSupportedArchs")
    return tuple(int(each) for each in found[:number])


def compile_cubin(source: str, name: str, options: Sequence[str]) -> bytes:
    """The cubin of the source; ``name`` is what the log calls it."""
    nvrtc = bindings()
    counter.compiles += 1
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    check(nvrtc, status, "nvrtcCreateProgram")
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise Refused(program_log(nvrtc, program))
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise failure(nvrtc, status, "nvrtcCompileProgram", program_log(nvrtc, program))
        status, nbytes = nvrtc.nvrtcGetCUBINSize(program)
        check(nvrtc, status, "nvrtcGetCUBINSize")
        cubin = bytearray(nbytes)
        (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        check(nvrtc, status, "nvrtcGetCUBIN")
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@cache
def bindings() -> Any:
    """The module ``cuda.bindings.nvrtc``, with its library loaded."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as problem:
        raise CudaError(
            "import cuda.bindings.nvrtc", "not installed", f"{problem}; {INSTALL}"
        ) from None
    try:
        nvrtc.nvrtcVersion()
    except (RuntimeError, OSError, ImportError) as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise CudaError("load NVRTC", "library not found", f"{reason}; {INSTALL}") from None
    return nvrtc


def check(nvrtc: Any, status: Any, call: str) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise failure(nvrtc, status, call, "")


def failure(nvrtc: Any, status: Any, call: str, log: str) -> CudaError:
    _, text = nvrtc.nvrtcGetErrorString(status)
    said = text.decode() if isinstance(text, bytes) else str(text)
    return CudaError(call, getattr(status, "name", str(status)), log.strip("\n\0 ") or said)


def program_log(nvrtc: Any, program: Any) -> str:
    status, nbytes = nvrtc.nvrtcGetProgramLogSize(program)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS or nbytes <= 1:
        return ""
    log = bytearray(nbytes)
    nvrtc.nvrtcGetProgramLog(program, log)
    return bytes(log).decode(errors="replace").rstrip("\0")
