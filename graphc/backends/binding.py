"""What every backend checks when a caller binds arrays or launches with a count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphc.dtypes import dtype
from graphc.ir import Buffer, Program, Role
from graphc.text.diagnostics import UsageError
from graphc.text.suggest import did_you_mean

ALIGNMENT = 16  # bytes: kernels move 16 at a time


def unknown_buffer(name: str, buffers: Iterable[str]) -> UsageError:
    hint = did_you_mean(name, buffers)
    return UsageError(f"no buffer is named '{name}'" + (f": {hint}" if hint else ""))


def named_arrays(
    buffers: Mapping[str, Buffer], given: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Buffer name and array; a list stands for the buffers of all iterations of that name."""
    for name, value in given.items():
        if name in buffers:
            if buffers[name].role is Role.SCRATCH:
                raise UsageError(
                    f"'{name}' is scratch: it has no role, so nothing can be bound to it"
                )
            yield name, value
            continue
        each = [key for key in buffers if key.rsplit("/", 1)[-1] == name and "/" in key]
        if not each:
            raise unknown_buffer(name, buffers)
        if not isinstance(value, Sequence) or len(value) != len(each):
            found = f"{len(value)}" if isinstance(value, Sequence) else "one array"
            raise UsageError(
                f"'{name}' exists once an iteration: expected a list of {len(each)} arrays, "
                f"found {found}"
            )
        yield from zip(each, value, strict=True)


def check_array(buffer: Buffer, value: Any) -> NDArray[Any]:
    """The caller's array, if it can stand for the buffer as it is: no copy is ever made."""
    if not isinstance(value, np.ndarray):
        raise UsageError(
            f"'{buffer.name}': expected a numpy array, found {type(value).__name__} "
            "(the reference backend runs on the host)"
        )
    wanted = dtype(buffer.dtype)
    if value.dtype != wanted.numpy:
        raise UsageError(
            f"'{buffer.name}': expected dtype {buffer.dtype} ({wanted.numpy}), found {value.dtype}"
        )
    if value.shape != buffer.shape:
        raise UsageError(f"'{buffer.name}': expected shape {buffer.shape}, found {value.shape}")
    if not value.flags.c_contiguous:
        raise UsageError(
            f"'{buffer.name}': expected rows next to each other, found strides {value.strides}; "
            "pass numpy.ascontiguousarray(array)"
        )
    if value.nbytes and value.ctypes.data % ALIGNMENT:
        raise UsageError(
            f"'{buffer.name}': expected an address that {ALIGNMENT} divides, found "
            f"{value.ctypes.data:#x}"
        )
    return value


def check_count(program: Program, count: int | None) -> int | None:
    """The rows in use: the capacity where none are named."""
    if program.capacity is None:
        if count is not None:
            raise UsageError(
                f"'{program.name}' has no count: mark one of its params with 'count: true'"
            )
        return None
    if count is None:
        return program.capacity
    if not 0 <= count <= program.capacity:
        raise UsageError(
            f"count {count} is outside 0 to {program.capacity}, the capacity "
            f"('{program.count_name}') for which the plan was compiled"
        )
    return count
