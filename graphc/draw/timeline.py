"""When each op of a schedule runs, by a simple rule: streams in order, waits, and a duration an op.

An op starts when its stream is free and all that the stream waited for has ended, an await when its
signals have been sent; nothing else holds it up. Contention for engines, links and multiprocessors
is left out: this is for looking at an order, not for predicting a time. Durations follow from these
rates, round numbers for a GPU of 2023 (Hopper) that nothing here was fitted to:

| what | rate | of |
| --- | --- | --- |
| arithmetic | 500 Tflop/s | half of what its tensor cores reach with 16 bits |
| its own memory | 3 TB/s | two thirds of what HBM3e reaches |
| to and from the host | 50 GB/s | PCIe 5 x16, one way |
| to and from a peer | 300 GB/s | two thirds of NVLink 4, one way |
| every op | 2 us | the least that anything takes |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.ir import (
    HOST,
    MAPPED,
    Await,
    Join,
    Op,
    Record,
    Run,
    Schedule,
    Signal,
    Sync,
    Wait,
)
from graphc.kernels.costs import GpuShape

OP_US = 2.0  # what the smallest op takes
NOMINAL_GPU = GpuShape(arch=90, sms=132, shared_optin=232_448)


@dataclass(frozen=True, slots=True)
class Rates:
    flops_per_us: float
    memory_bytes_per_us: float
    host_bytes_per_us: float
    peer_bytes_per_us: float


NOMINAL = Rates(500e6, 3e6, 50e3, 300e3)


@dataclass(frozen=True, slots=True)
class Box:
    """One op on its stream."""

    op: str
    stream: str
    start_us: float
    stop_us: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """A wait: from the op behind which the event was recorded to the next op of the waiter.

    Or a signal, to the await.
    """

    event: str
    before: Box
    after: Box
    is_binding: bool  # the waiter was free earlier: this wait decides when it starts


@dataclass(frozen=True, slots=True)
class Timeline:
    boxes: tuple[Box, ...]  # in issue order
    arrows: tuple[Arrow, ...]
    stop_us: float

    def waited_us(self, ops: frozenset[str]) -> float:
        """How long the streams of these ops stood idle right in front of them."""
        free: dict[str, float] = {}
        waited = 0.0
        for box in self.boxes:
            if box.op in ops:
                waited += box.start_us - free.get(box.stream, box.start_us)
            free[box.stream] = box.stop_us
        return waited


def timeline(
    schedule: Schedule,
    *,
    durations: Mapping[str, float] | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None,
) -> Timeline:
    """Lay the ops out in time.

    ``durations`` gives microseconds by op or by step (others are guessed from their bytes);
    ``measured`` gives start and stop by op, and then nothing is estimated.
    """
    boxes = measured_boxes(schedule, measured) if measured else estimated(schedule, durations or {})
    arrows = find_arrows(schedule, {box.op: box for box in boxes})
    return Timeline(boxes, arrows, max((box.stop_us for box in boxes), default=0.0))


def measured_boxes(
    schedule: Schedule, measured: Mapping[str, tuple[float, float]]
) -> tuple[Box, ...]:
    first = min((start for start, _ in measured.values()), default=0.0)
    return tuple(
        Box(each.op, each.stream, measured[each.op][0] - first, measured[each.op][1] - first)
        for each in schedule.instructions
        if isinstance(each, Run) and each.op in measured
    )


def estimated(schedule: Schedule, durations: Mapping[str, float]) -> tuple[Box, ...]:
    ops = {op.name: op for op in schedule.program}
    places = {buffer.name: buffer.device for buffer in schedule.program.buffers.values()}
    hosts = {each.name for each in schedule.streams if each.device == HOST}
    free: dict[str, float] = {}
    events: dict[str, float] = {}
    sent: dict[str, float] = {}  # signals
    host_us = 0.0  # nothing starts before the host has issued it
    boxes = []
    for each in schedule.instructions:
        now = max(free.get(each.stream, 0.0), host_us)
        match each:
            case Run():
                op = ops[each.op]
                given = durations.get(op.name, durations.get(op.step))
                took = estimate_us(op, places) if given is None else given
                now = max([now, *(sent.get(name, 0.0) for name in awaited(op))])
                if isinstance(op.work, Signal):
                    sent[op.work.signal] = now + took
                boxes.append(Box(op.name, each.stream, now, now + took))
                free[each.stream] = now + took
                if each.stream in hosts:
                    host_us = now + took
            case Record():
                events[each.event] = now
            case Wait():
                free[each.stream] = max(now, events.get(each.event, 0.0))
            case Sync():
                host_us = now
    return tuple(boxes)


def awaited(op: Op) -> list[str]:
    """The signals of this launch that an op awaits."""
    signals = op.work.signals if isinstance(op.work, Await) else ()
    return [each.signal for each in signals if not each.is_handshake]


def estimate_us(op: Op, places: Mapping[str, str]) -> float:
    """A guess from the bytes of the op: those of its own memory, or those that cross a link."""
    if isinstance(op.work, Join):
        return 0.0
    own = sum(
        access.region.nbytes for access in op.accesses if places[access.region.buffer] == op.device
    )
    return OP_US + max(own / NOMINAL.memory_bytes_per_us, link_us(op, places))


def link_us(op: Op, places: Mapping[str, str]) -> float:
    """The time of the bytes in memory that is not that of the op's device."""
    found = 0.0
    for access in op.accesses:
        place = places[access.region.buffer]
        if place != op.device:
            is_host = MAPPED in (place, op.device)
            rate = NOMINAL.host_bytes_per_us if is_host else NOMINAL.peer_bytes_per_us
            found += access.region.nbytes / rate
    return found


def find_arrows(schedule: Schedule, boxes: Mapping[str, Box]) -> tuple[Arrow, ...]:
    """From each signal to its awaits, and from the op before each record to that after its wait.

    Forks and joins have none.
    """
    ops = {op.name: op for op in schedule.program}
    last: dict[str, Box] = {}  # the latest op of each stream
    recorded: dict[str, Box | None] = {}
    sent: dict[str, Box] = {}  # signals
    pending: dict[str, list[tuple[str, Box]]] = {}
    arrows = []
    for each in schedule.instructions:
        match each:
            case Run() if each.op in boxes:
                box = boxes[each.op]
                free_us = last[each.stream].stop_us if each.stream in last else 0.0
                waits = pending.pop(each.stream, [])
                waits += [(name, sent[name]) for name in awaited(ops[each.op]) if name in sent]
                arrows += arrows_into(box, free_us, waits)
                last[each.stream] = box
                work = ops[each.op].work
                if isinstance(work, Signal):
                    sent[work.signal] = box
            case Record():
                recorded[each.event] = last.get(each.stream)
            case Wait():
                before = recorded.get(each.event)
                if before is not None and before.stream != each.stream:
                    pending.setdefault(each.stream, []).append((each.event, before))
            case _:
                pass
    return tuple(arrows)


def arrows_into(box: Box, free_us: float, waits: list[tuple[str, Box]]) -> list[Arrow]:
    """Of the waits in front of one op the last to be met binds, if the stream was free before."""
    latest = max((before.stop_us for _, before in waits), default=0.0)
    return [
        Arrow(event, before, box, before.stop_us == latest and latest > free_us)
        for event, before in waits
    ]
