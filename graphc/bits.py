"""Bits of outputs: their digests, and where two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphc.ir import Buffer, Program, Role
from graphc.text.diagnostics import UsageError

OUTPUTS = (Role.OUTPUT, Role.INOUT, Role.STATE, Role.STATUS)

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Difference:
    """One output whose bits differ, and its first element that does."""

    name: str
    elements: int
    different: int
    index: tuple[int, ...]
    this: float | int
    other: float | int

    def __str__(self) -> str:
        place = ", ".join(map(str, self.index))
        return (
            f"'{self.name}' differs in {self.different:,} of {self.elements:,} elements, first at "
            f"[{place}]: {self.this!r} here, {self.other!r} there"
        )


def output_buffers(program: Program) -> list[Buffer]:
    return [
        each for each in program.buffers.values() if each.role in OUTPUTS and not each.is_optional
    ]


def rows_in_use(buffer: Buffer, array: NDArray[Any], count: int | None) -> NDArray[Any]:
    """What a replay defines: the rows that the count reaches."""
    if count is None or not buffer.per_count:
        return array
    return array[: buffer.per_count * count]


def digest(array: NDArray[Any]) -> str:
    """A short name for these bits."""
    from hashlib import sha256

    return sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def differences(this: Arrays, other: Arrays) -> list[Difference]:
    """Every output whose bits are not the same; NaNs are compared by their bits, too."""
    if this.keys() != other.keys():
        lone = ", ".join(sorted(this.keys() ^ other.keys()))
        raise UsageError(
            f"only one of the two has the output {lone}: compare schedules of one spec"
        )
    found = (difference(name, array, other[name]) for name, array in this.items())
    return [each for each in found if each is not None]


def difference(name: str, this: NDArray[Any], other: NDArray[Any]) -> Difference | None:
    if this.shape != other.shape or this.dtype != other.dtype:
        raise UsageError(
            f"'{name}' is {this.dtype}{list(this.shape)} here and {other.dtype}{list(other.shape)} "
            "there: compare values that change the schedule, not the shapes"
        )
    raw = f"u{this.dtype.itemsize}"
    left = np.ascontiguousarray(this).view(raw).ravel()
    right = np.ascontiguousarray(other).view(raw).ravel()
    where = np.flatnonzero(left != right)
    if not where.size:
        return None
    index = tuple(int(each) for each in np.unravel_index(int(where[0]), this.shape))
    return Difference(
        name, this.size, int(where.size), index, scalar(this[index]), scalar(other[index])
    )


def scalar(value: Any) -> float | int:
    return int(value) if np.issubdtype(type(value), np.integer) else float(value)
