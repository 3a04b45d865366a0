"""When each op ran, or would run: what a simulation gives, a trace measures and a page draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from graphc.ir import Await, Emit, Record, Run, Schedule, Signal, Wait


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


def needed_ops(schedule: Schedule) -> dict[str, tuple[str, ...]]:
    """Op -> the ops of other streams whose end it needs, by events, edges or signals.

    Only the nearest: what follows from these and from the order of its own stream is left out.
    """
    nearest = by_edges(schedule) if schedule.emit is Emit.NODES else by_events(schedule)
    signals = {op.work.signal: op.name for op in schedule.program if isinstance(op.work, Signal)}
    for op in schedule.program:
        if isinstance(op.work, Await):
            awaited = (each.signal for each in op.work.signals if not each.is_handshake)
            senders = tuple(signals[each] for each in awaited if each in signals)
            nearest[op.name] = (*nearest.get(op.name, ()), *senders)
    return nearest


def by_events(schedule: Schedule) -> dict[str, tuple[str, ...]]:
    """A record stands for the last op of its stream, and for what the stream awaited since."""
    tails: dict[str, tuple[str, ...]] = {}
    recorded: dict[str, tuple[str, ...]] = {}
    streams: dict[str, str] = {}
    nearest: dict[str, tuple[str, ...]] = {}
    for each in schedule.instructions:
        tail = tails.get(each.stream, ())
        match each:
            case Run():
                streams[each.op] = each.stream
                nearest[each.op] = tuple(op for op in tail if streams[op] != each.stream)
                tails[each.stream] = (each.op,)
            case Record():
                recorded[each.event] = tail
            case Wait():
                tails[each.stream] = tuple(dict.fromkeys((*tail, *recorded.get(each.event, ()))))
            case _:
                pass
    return nearest


def by_edges(schedule: Schedule) -> dict[str, tuple[str, ...]]:
    streams = streams_of(schedule)
    nearest: dict[str, list[str]] = {op: [] for op in streams}
    for before, after in schedule.edges:
        if streams.get(before) != streams.get(after) and after in nearest:
            nearest[after].append(before)
    return {op: tuple(found) for op, found in nearest.items()}


def streams_of(schedule: Schedule) -> Mapping[str, str]:
    """Op -> its stream, in order of issue."""
    return {each.op: each.stream for each in schedule.instructions if isinstance(each, Run)}
