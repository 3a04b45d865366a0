"""Half-open byte ranges of buffers: what ops read and write, and all that order rests on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """The bytes ``[start, stop)`` of one buffer, at the nominal extent (see ``Program.nominal``).

    >>> Region("x", 0, 8).overlaps(Region("x", 8, 12))
    False
    """

    buffer: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"{self.buffer}[{self.start}:{self.stop}] is no half-open range")

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    def overlaps(self, other: Region) -> bool:
        return self.buffer == other.buffer and self.start < other.stop and other.start < self.stop

    def __str__(self) -> str:
        return f"{self.buffer}[{self.start}:{self.stop}]"
