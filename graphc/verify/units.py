"""What makes no sense in a divided schedule, or between the entries of a plan.

Units share no device and no event; all order between them is by signals that are sent in an order
of issue before they are awaited, so that no two units wait for each other. Entries run over the
same memory: what one leaves there is what another finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphc.ir import (
    Await,
    Awaited,
    Begin,
    Op,
    Record,
    Role,
    Run,
    Schedule,
    Signal,
    Signalling,
    Wait,
)
from graphc.text.diagnostics import NOWHERE, Diagnostic, Span
from graphc.verify.trace import Order, is_free, unit_of_device


def unit_faults(schedule: Schedule, order: Order) -> Iterator[Diagnostic]:
    """Units that overlap or reach into each other, and what is not counted from its beginning."""
    if not schedule.units:
        for op in schedule.program.ops:
            if isinstance(op.work, Begin | Signal | Await):
                yield fault(
                    f"'{op.name}' speaks of units, but the schedule is not divided", op.span
                )
        return
    if schedule.sync is Signalling.MEMOPS and is_free(schedule):
        yield fault("flags that are taken down again (sync: memops) may be put up before they are")
    yield from faults_of_devices(schedule)
    yield from faults_of_beginnings(schedule)
    yield from faults_of_events(schedule)
    if order == "edges":
        unit_of = unit_of_op(schedule)
        for one, two in schedule.edges:
            if unit_of.get(one) != unit_of.get(two):
                yield fault(f"edge '{one}' -> '{two}' leads from one unit to another")


def entry_faults(schedules: Sequence[Schedule], order: Order) -> Iterator[Diagnostic]:
    """Entries that do not fit together, and signals that never come."""
    entries: dict[str, Schedule] = {}
    for each in schedules:
        if each.entry in entries:
            yield fault(f"there are two schedules of entry '{each.entry}'")
        entries[each.entry] = each
    first = schedules[0]
    for each in schedules[1:]:
        if is_free(each) != is_free(first):
            yield fault(f"'{each.entry}' is launched in another way than '{first.entry}'")
        if each.sync is not first.sync:
            yield fault(f"'{each.entry}' signals in another way than '{first.entry}'")
    yield from faults_of_sharing(schedules)
    yield from faults_of_memory(schedules)
    signals = {name: dict(sent(each, order)) for name, each in entries.items()}
    for each in schedules:
        yield from faults_of_signals(each, signals[each.entry])
        yield from faults_of_awaits(each, order, signals)


def fault(message: str, span: Span = NOWHERE) -> Diagnostic:
    return Diagnostic("bad-schedule", message, span)


def unit_of_op(schedule: Schedule) -> dict[str, str]:
    unit_of = unit_of_device(schedule)
    return {op.name: unit_of.get(op.device, "") for op in schedule.program.ops}


# One schedule


def faults_of_devices(schedule: Schedule) -> Iterator[Diagnostic]:
    """Every device that is used belongs to one unit, which begins on a stream of its own."""
    owners: dict[str, str] = {}
    names: set[str] = set()
    for unit in schedule.units:
        if unit.name in names:
            yield fault(f"there are two units '{unit.name}'")
        names.add(unit.name)
        for device in unit.devices:
            if device in owners:
                yield fault(f"units '{owners[device]}' and '{unit.name}' share device '{device}'")
            owners[device] = unit.name
    device_of = {each.name: each.device for each in schedule.streams}
    for stream in schedule.streams:
        if stream.device not in owners:
            yield fault(f"stream '{stream.name}' of '{stream.device}' belongs to no unit")
    for op in schedule.program.ops:
        if op.device not in owners:
            yield fault(f"'{op.name}' runs on '{op.device}', which belongs to no unit", op.span)
    for unit in schedule.units:
        if owners.get(device_of.get(unit.origin, "")) != unit.name:
            yield fault(f"unit '{unit.name}' begins on '{unit.origin}', which is no stream of it")


def faults_of_beginnings(schedule: Schedule) -> Iterator[Diagnostic]:
    """Each unit counts its launches once, before all else."""
    unit_of = unit_of_op(schedule)
    begins: dict[str, str] = {}
    for op in schedule.program.ops:
        unit = unit_of[op.name]
        if isinstance(op.work, Begin):
            if unit in begins:
                yield fault(f"unit '{unit}' begins twice: '{begins[unit]}' and '{op.name}'")
            begins[unit] = op.name
    for part in schedule.units:
        if part.name not in begins:
            yield fault(f"unit '{part.name}' does not begin: nothing counts its launches")
    begun: set[str] = set()
    for each in schedule.instructions:
        if isinstance(each, Run) and (unit := unit_of.get(each.op, "")) in begins:
            if unit not in begun and each.op != begins[unit]:
                yield fault(f"unit '{unit}' runs '{each.op}' before '{begins[unit]}'", each.span)
            begun.add(unit)


def faults_of_events(schedule: Schedule) -> Iterator[Diagnostic]:
    unit_of = unit_of_device(schedule)
    streams = {each.name: unit_of.get(each.device, "") for each in schedule.streams}
    recorded: dict[str, str] = {}
    for each in schedule.instructions:
        if isinstance(each, Record):
            recorded[each.event] = streams.get(each.stream, "")
        elif isinstance(each, Wait):
            unit = streams.get(each.stream, "")
            if recorded.get(each.event, unit) != unit:
                text = f"'{each.stream}' of unit '{unit}' waits for event '{each.event}' of unit "
                yield fault(f"{text}'{recorded[each.event]}'", each.span)


# Entries


def faults_of_sharing(schedules: Sequence[Schedule]) -> Iterator[Diagnostic]:
    """A unit has the same devices in all entries, and no other unit has any of them."""
    owners: dict[str, tuple[str, str]] = {}  # device -> unit, entry
    devices: dict[str, tuple[str, ...]] = {}
    for schedule in schedules:
        for unit in schedule.parts:
            if devices.setdefault(unit.name, unit.devices) != unit.devices:
                text = f"unit '{unit.name}' of '{schedule.entry}' has other devices than "
                yield fault(f"{text}that of '{schedules[0].entry}'")
            for device in unit.devices:
                name, entry = owners.setdefault(device, (unit.name, schedule.entry))
                if name != unit.name and entry != schedule.entry:
                    text = f"'{device}' belongs to unit '{name}' in '{entry}', "
                    yield fault(f"{text}to '{unit.name}' in '{schedule.entry}'")


def faults_of_memory(schedules: Sequence[Schedule]) -> Iterator[Diagnostic]:
    """One name, one memory: else an entry would not find what another left."""
    allocations = {each.name: each for each in schedules[0].memory.allocations}
    kept = dict(buffers_kept(schedules[0]))
    for schedule in schedules[1:]:
        for each in schedule.memory.allocations:
            if allocations.setdefault(each.name, each) != each:
                yield fault(f"allocation '{each.name}' is another in '{schedule.entry}'")
        for name, facts in buffers_kept(schedule):
            if kept.setdefault(name, facts) != facts:
                span = schedule.program.buffers[name].span
                yield fault(f"buffer '{name}' is another in '{schedule.entry}'", span)


def buffers_kept(schedule: Schedule) -> Iterator[tuple[str, tuple[object, ...]]]:
    """The buffers that outlive a launch: what they are, and where they lie."""
    for name, each in schedule.program.buffers.items():
        if each.role is not Role.SCRATCH:
            shape = each.device, each.dtype, each.shape, each.per_count, each.role, each.overlay
            yield name, (*shape, schedule.memory.slots.get(name))


@dataclass(frozen=True, slots=True)
class Sent:
    op: Op
    work: Signal
    unit: str
    at: int  # where in the order of issue


Signals = Mapping[str, Mapping[str, Sent]]  # entry -> signal


def sent(schedule: Schedule, order: Order) -> Iterator[tuple[str, Sent]]:
    """The signals of a schedule; of one name, the first."""
    unit_of, at = unit_of_op(schedule), issued(schedule, order)
    for op in reversed(schedule.program.ops):
        if isinstance(op.work, Signal):
            yield op.work.signal, Sent(op, op.work, unit_of[op.name], at.get(op.name, -1))


def issued(schedule: Schedule, order: Order) -> dict[str, int]:
    if order == "edges":
        return {op.name: index for index, op in enumerate(schedule.program.ops)}
    runs = enumerate(schedule.instructions)
    return {each.op: index for index, each in runs if isinstance(each, Run)}


def faults_of_signals(schedule: Schedule, signals: Mapping[str, Sent]) -> Iterator[Diagnostic]:
    names = {each.name for each in schedule.units}
    for op in schedule.program.ops:
        if not isinstance(op.work, Signal) or not schedule.units:
            continue
        first = signals[op.work.signal]
        if first.op is not op:
            text = f"signal '{op.work.signal}' is sent twice, by '{first.op.name}' and '{op.name}'"
            yield fault(text, op.span)
        for other in op.work.to:
            if other == first.unit or other not in names:
                what = "its own unit" if other == first.unit else f"'{other}', which is no unit"
                yield fault(f"'{op.name}' signals {what}", op.span)


def faults_of_awaits(schedule: Schedule, order: Order, signals: Signals) -> Iterator[Diagnostic]:
    unit_of, at = unit_of_op(schedule), issued(schedule, order)
    for op in schedule.program.ops:
        if isinstance(op.work, Await) and schedule.units:
            for each in op.work.signals:
                known = signals.get(each.entry, {}).get(each.signal)
                here = unit_of[op.name], schedule.entry, at.get(op.name, -1)
                text = why_it_never_comes(each, known, *here)
                if text is None and each.is_handshake and schedule.sync is Signalling.MEMOPS:
                    text = "of the launch before, of which flags (sync: memops) keep nothing"
                if text is not None:
                    yield fault(f"'{op.name}' awaits signal '{each.signal}', {text}", op.span)


def why_it_never_comes(
    awaited: Awaited, known: Sent | None, unit: str, entry: str, at: int
) -> str | None:
    if known is None:
        return f"which '{awaited.entry}' does not send"
    if known.unit != awaited.unit:
        return f"which unit '{known.unit}' sends, not '{awaited.unit}'"
    if known.unit == unit:
        return "which its own unit sends"
    if unit not in known.work.to:
        return f"which is not sent to unit '{unit}'"
    if awaited.is_handshake:
        return None
    if awaited.entry != entry:
        return f"which another entry sends, '{awaited.entry}', and not in this launch"
    if known.at > at:
        return f"which '{known.op.name}' sends later"
    return None
