"""What each op of a schedule starts behind: the op before it on its stream, and those of waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.ir import HOST, Await, Emit, Op, Record, Run, Schedule, Signal, Sync, Wait


@dataclass(frozen=True, slots=True)
class Orders:
    """Ops by their place in the order of issue."""

    ops: tuple[Op, ...]
    streams: tuple[str, ...]  # of each op
    before: tuple[tuple[int, ...], ...]  # ops that have to end first
    awaits: tuple[tuple[int, ...], ...]  # signals that have to come before its end
    previous: tuple[int, ...]  # the op before on its stream, or -1
    calls: tuple[int, ...]  # instructions issued before it: records and waits count


def needed_ops(schedule: Schedule) -> dict[str, tuple[str, ...]]:
    """Op -> the ops of other streams whose end it needs, in order of issue."""
    orders = orders_of(schedule)
    names = [op.name for op in orders.ops]
    return {
        name: tuple(names[each] for each in orders.before[at] if orders.streams[each] != stream)
        for at, (name, stream) in enumerate(zip(names, orders.streams, strict=True))
    }


def orders_of(schedule: Schedule) -> Orders:
    """Orders by streams and events, or by the edges where these are what is built."""
    ops = {op.name: op for op in schedule.program}
    runs = [(at, each) for at, each in enumerate(schedule.instructions) if isinstance(each, Run)]
    found = tuple(ops[run.op] for _, run in runs)
    streams = tuple(run.stream for _, run in runs)
    number = {op.name: index for index, op in enumerate(found)}
    before, previous = by_streams(schedule, number)
    if schedule.emit is Emit.NODES:
        before = by_edges(schedule, number)
    signals = {
        op.work.signal: index for index, op in enumerate(found) if isinstance(op.work, Signal)
    }
    awaits: list[tuple[int, ...]] = [() for _ in found]
    for index, op in enumerate(found):
        if isinstance(op.work, Await):
            names = [each.signal for each in op.work.signals if not each.is_handshake]
            awaits[index] = tuple(signals[each] for each in names if each in signals)
    calls = tuple(at for at, _ in runs)
    return Orders(found, streams, tuple(before), tuple(awaits), tuple(previous), calls)


def by_streams(
    schedule: Schedule, number: Mapping[str, int]
) -> tuple[list[tuple[int, ...]], list[int]]:
    hosts = {each.name for each in schedule.streams if each.device == HOST}
    fronts: dict[str, tuple[int, ...]] = {}  # stream -> what its next op starts behind
    last: dict[str, int] = {}
    events: dict[str, tuple[int, ...]] = {}
    host: tuple[int, ...] = ()  # what the host has waited for before it issues anything more
    before: list[tuple[int, ...]] = []
    previous: list[int] = []
    for each in schedule.instructions:
        stream = each.stream
        match each:
            case Run():
                index = number[each.op]
                front = fronts.get(stream, ())
                before.append(merged(front, host) if host else front)
                previous.append(last.get(stream, -1))
                fronts[stream] = (index,)
                last[stream] = index
                if stream in hosts:
                    host = (index,)
            case Record():
                events[each.event] = fronts.get(stream, ())
            case Wait():
                fronts[stream] = merged(fronts.get(stream, ()), events.get(each.event, ()))
            case Sync():
                host = merged(host, fronts.get(stream, ()))
    return before, previous


def by_edges(schedule: Schedule, number: Mapping[str, int]) -> list[tuple[int, ...]]:
    before: list[tuple[int, ...]] = [() for _ in number]
    for source, target in schedule.edges:
        before[number[target]] += (number[source],)
    return before


def merged(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...]:
    return one + tuple(each for each in two if each not in one)
