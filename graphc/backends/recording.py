"""What was seen of some replays: when each op ran, on one clock, and what could not be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Way(StrEnum):
    """How the times of ops are found."""

    CUPTI = "cupti"  # the GPU's own records of every node
    EVENTS = "events"  # events recorded around every op, in a graph made for this
    WALL = "wall"  # the host's clock around the reference of every op


@dataclass(frozen=True, slots=True)
class Span:
    """When one op ran, since its replay began."""

    start_us: float
    stop_us: float

    @property
    def us(self) -> float:
        return self.stop_us - self.start_us


@dataclass(frozen=True, slots=True)
class Stray:
    """A record that belongs to no op, or contradicts the op that its node belongs to."""

    what: str  # "kernel grouped_up", "copy of 4096 bytes"
    why: str
    device: int  # the GPU's ordinal
    start_us: float
    stop_us: float


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, op by op."""

    spans: Mapping[str, Span]
    strays: tuple[Stray, ...] = ()
    stop_us: float | None = None  # when the origin could go on; None: when the last op ended


@dataclass(frozen=True, slots=True)
class Recording:
    """Some replays, the one that warms up left out."""

    way: Way
    replays: tuple[Replay, ...]
    clocks: Mapping[str, str]  # device -> how its times came to stand on the clock of the replay
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # ops that ran and of which nothing was seen
    launch_us: float | None = None  # median time of the host in a launch, where nothing disturbs it
    names: Mapping[str, str] = field(default_factory=dict)  # device -> the GPU's name
