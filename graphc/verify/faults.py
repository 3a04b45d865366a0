"""What leaves nothing to prove: instructions, edges and memory that make no sense."""

from __future__ import annotations

from collections.abc import Iterator

from graphc.ir import Record, Role, Run, Schedule, Wait
from graphc.text.diagnostics import Diagnostic
from graphc.verify.accesses import base_of


def instruction_faults(schedule: Schedule) -> Iterator[Diagnostic]:
    """Instructions that name what is not there, run an op twice or elsewhere, or wait too early."""
    ops = {op.name: op for op in schedule.program.ops}
    devices = {stream.name: stream.device for stream in schedule.streams}
    recorded: set[str] = set()
    ran: set[str] = set()
    if schedule.origin not in devices:
        yield Diagnostic("bad-schedule", f"the origin '{schedule.origin}' is no stream")
        return
    for each in schedule.instructions:
        if each.stream not in devices:
            yield Diagnostic("bad-schedule", f"there is no stream '{each.stream}'", each.span)
            continue
        match each:
            case Run(stream, name, span):
                if name not in ops:
                    yield Diagnostic("bad-schedule", f"there is no op '{name}'", span)
                    continue
                if name in ran:
                    yield Diagnostic("bad-schedule", f"'{name}' runs twice", span)
                ran.add(name)
                if ops[name].device != devices[stream]:
                    yield Diagnostic(
                        "bad-schedule",
                        f"'{name}' runs on '{ops[name].device}', "
                        f"but stream '{stream}' belongs to '{devices[stream]}'",
                        span,
                    )
            case Record(_, event):
                recorded.add(event)
            case Wait(stream, event, span):
                if event not in recorded:
                    yield Diagnostic(
                        "bad-schedule",
                        f"'{stream}' waits for event '{event}' before it is ever recorded",
                        span,
                    )
    for name, op in ops.items():
        if name not in ran:
            yield Diagnostic("bad-schedule", f"'{name}' never runs", op.span)


def edge_faults(schedule: Schedule) -> Iterator[Diagnostic]:
    places = {op.name: place for place, op in enumerate(schedule.program.ops)}
    for one, two in schedule.edges:
        if one not in places or two not in places:
            yield Diagnostic("bad-schedule", f"edge '{one}' -> '{two}' names no op")
        elif places[one] >= places[two]:
            yield Diagnostic("bad-schedule", f"edge '{one}' -> '{two}' goes back")


def memory_faults(schedule: Schedule) -> Iterator[Diagnostic]:
    """Regions outside their buffer, buffers outside their allocation, overlays elsewhere."""
    program, slots = schedule.program, schedule.memory.slots
    allocations = {each.name: each for each in schedule.memory.allocations}
    reach: dict[str, int] = {}
    for op in program.ops:
        for access in op.accesses:
            name = access.region.buffer
            if name not in program.buffers:
                yield Diagnostic("bad-schedule", f"there is no buffer '{name}'", access.span)
            elif reach.get(name, -1) < access.region.stop:
                reach[name] = access.region.stop
    for name, stop in reach.items():
        buffer = program.buffers[name]
        if stop > buffer.nominal_rows(program.nominal) * buffer.row_nbytes:
            yield Diagnostic(
                "bad-schedule", f"byte {stop} lies outside of buffer '{name}'", buffer.span
            )
        slot = slots.get(name)
        home = allocations.get(slot.allocation) if slot else None
        if slot is None or home is None:
            yield Diagnostic("bad-schedule", f"buffer '{name}' has no memory", buffer.span)
        elif slot.offset < 0 or slot.offset + buffer.nbytes > home.nbytes:
            yield Diagnostic(
                "bad-schedule", f"buffer '{name}' lies outside of '{home.name}'", buffer.span
            )
        elif home.device != buffer.device:
            yield Diagnostic(
                "bad-schedule",
                f"buffer '{name}' of '{buffer.device}' lies in memory of '{home.device}'",
                buffer.span,
            )
        elif buffer.overlay is not None:
            base = slots.get(buffer.overlay[0])
            if base is None or (base.allocation, base.offset + buffer.overlay[1]) != (
                slot.allocation,
                slot.offset,
            ):
                yield Diagnostic(
                    "bad-schedule",
                    f"buffer '{name}' does not lie on '{buffer.overlay[0]}'",
                    buffer.span,
                )


def sharing_faults(schedule: Schedule) -> Iterator[Diagnostic]:
    """Buffers in the memory of one with a role: it keeps its bytes, and the caller may bind it."""
    buffers = schedule.program.buffers
    bases: dict[str, dict[str, None]] = {}  # allocation -> the buffers in it
    for name, slot in schedule.memory.slots.items():
        if name in buffers:
            bases.setdefault(slot.allocation, {})[base_of(schedule, name)] = None
    for allocation, names in bases.items():
        owner = next((name for name in names if buffers[name].role is not Role.SCRATCH), None)
        for name in names if owner is not None else ():
            if name != owner:
                text = f"buffer '{name}' lies in '{allocation}', which is for '{owner}' alone"
                yield Diagnostic("bad-schedule", text, buffers[name].span)
