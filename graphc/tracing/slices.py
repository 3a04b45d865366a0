"""Times of ops -> a timeline: whose turn each op was, and what it waited for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from graphc.backends.recording import Recording, Replay, Span, Way
from graphc.ir import HOST, MAPPED, Copy, Extern, Fill, Kernel, Op, Schedule
from graphc.simulation.orders import needed_ops, orders_of
from graphc.timeline import Slice, Source, Timeline


def timeline_of(schedule: Schedule, recording: Recording, replay: Replay) -> Timeline:
    """One replay of a recording."""
    slices = slices_of(schedule, replay.spans)
    if recording.way is Way.WALL:  # one op runs after the other: none waits for its turn
        slices = tuple(dataclasses.replace(each, ready_us=each.start_us) for each in slices)
    stop_us = max((each.stop_us for each in slices), default=0.0)
    if replay.stop_us is not None:
        stop_us = max(stop_us, replay.stop_us)
    return Timeline(Source.MEASURED, slices, stop_us, recording.launch_us)


def slices_of(schedule: Schedule, spans: Mapping[str, Span]) -> tuple[Slice, ...]:
    """The ops of which the times are known, in order of issue."""
    places = {buffer.name: buffer.device for buffer in schedule.program.buffers.values()}
    needed = needed_ops(schedule)
    orders = orders_of(schedule)
    free_us: dict[str, float] = {}  # stream -> when its latest op ended
    found = []
    for op, stream in zip(orders.ops, orders.streams, strict=True):
        name, span = op.name, spans.get(op.name)
        if span is None:
            continue
        others = [each for each in needed.get(name, ()) if each in spans]
        others.sort(key=lambda each: -spans[each].stop_us)
        ready_us = min(free_us.get(stream, 0.0), span.start_us)
        found.append(
            Slice(
                name, op.step, op.piece.index, stream, op.device, engine_of(op, places),
                span.start_us, span.stop_us, ready_us, tuple(others),
            )
        )  # fmt: skip
        free_us[stream] = max(free_us.get(stream, 0.0), span.stop_us)
    return tuple(found)


def engine_of(op: Op, places: Mapping[str, str]) -> str:
    """What of its device does the op."""
    if op.device == HOST:
        return "host"
    if isinstance(op.work, Copy):
        source, target = places[op["source"].region.buffer], places[op["target"].region.buffer]
        if source == target:
            return "copy within"
        if target == MAPPED:
            return "copy to host"
        return "copy from host" if source == MAPPED else "copy to peer"
    return "sm" if isinstance(op.work, Kernel | Fill | Extern) else "none"
