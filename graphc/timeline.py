"""When each op ran, or would run: what a simulation gives, a trace measures and a page draws."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    SIMULATED = "simulated"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Slice:
    """One op, or one piece of one, on its stream."""

    op: str  # "layer.0/activations/down/piece.3"
    step: str  # "layer.0/activations/down"
    piece: int
    stream: str
    device: str
    engine: str  # "sm", "copy to host", "copy from host", "copy to peer", "copy within", "none"
    start_us: float  # of the replay, not of the host's call
    stop_us: float
    ready_us: float  # when its stream had come to it, whatever else it had to wait for
    waited_for: tuple[str, ...] = ()  # ops of other streams whose end it needed, the latest first

    @property
    def duration_us(self) -> float:
        return self.stop_us - self.start_us

    @property
    def waited_us(self) -> float:
        return self.start_us - self.ready_us


@dataclass(frozen=True, slots=True)
class Timeline:
    """One replay of a schedule: its slices in order of issue."""

    source: Source
    slices: tuple[Slice, ...]
    stop_us: float  # when the caller's stream may go on
    launch_us: float | None = None  # what the launch costs the host; None: not known
