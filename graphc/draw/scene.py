"""What a page shows, as plain data: ops once, and the times of each view by their numbers.

Twenty thousand ops are a few megabytes: names of streams, steps, works and accesses stand once in
lists, and ops speak of them by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphc.draw.dump import access_text, work_text
from graphc.draw.palette import styles
from graphc.draw.swimlanes import hue_of
from graphc.ir import Copy, Op, Role, Schedule
from graphc.timeline import Slice, Timeline

Cell: TypeAlias = str | int | float | bool | None
DIGITS = 3  # of microseconds


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. How cells are written: text, us, number, share, percent, error."""

    name: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """One timeline of the schedule: as predicted, measured, or drawn by nominal rates."""

    label: str  # "predicted", "measured"
    basis: str  # where the times are from, in a line
    timeline: Timeline
    critical: tuple[str, ...] = ()  # ops of the critical path
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(slots=True)
class Numbers:
    """Things by number, in order of first mention."""

    known: dict[Any, int] = field(default_factory=dict)

    def __call__(self, thing: Any) -> int:
        return self.known.setdefault(thing, len(self.known))


def scene(
    schedule: Schedule, views: Sequence[View], phases: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The ops of a schedule, its memory, and when they run in each view."""
    ops = {op.name: op for op in schedule.program}
    number = {name: at for at, name in enumerate(ops)}
    origins = {unit.origin for unit in schedule.parts}
    return {
        "devices": list(
            dict.fromkeys((*schedule.program.devices, *(each.device for each in schedule.streams)))
        ),
        "streams": [
            {
                "name": each.name,
                "label": each.name.removeprefix(f"{each.device}."),
                "device": each.device,
                "isOrigin": each.name in origins,
            }
            for each in schedule.streams
        ],
        **ops_of(schedule, phases),
        "arenas": arenas(schedule, number),
        "views": [told(view, number, schedule) for view in views],
    }


def ops_of(schedule: Schedule, phases: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    phase_of = {step: phase for phase, steps in phases.items() for step in steps}
    phase_number = {phase: at for at, phase in enumerate(phases)}
    looks = styles(hue_of(op) for op in schedule.program)
    steps, works, accesses = Numbers(), Numbers(), Numbers()
    hues = {key: at for at, key in enumerate(looks)}
    before: dict[str, list[str]] = {op.name: [] for op in schedule.program}
    for first, second in schedule.edges:
        before[second].append(first)
    numbers = {op.name: at for at, op in enumerate(schedule.program)}
    ops = schedule.program.ops
    found = {
        "name": [op.name for op in ops],
        "step": [steps(op.step) for op in ops],
        "hue": [hues[hue_of(op)] for op in ops],
        "phase": [phase_number.get(phase_of.get(op.step, ""), -1) for op in ops],
        "device": [op.device for op in ops],
        "piece": [op.piece.index if op.piece.of > 1 else -1 for op in ops],
        "of": [op.piece.of for op in ops],
        "isCopy": [int(isinstance(op.work, Copy)) for op in ops],
        "work": [works(work_text(op.work)) for op in ops],
        "accesses": [[accesses(access_text(each)) for each in op.accesses] for op in ops],
        "before": [[numbers[each] for each in before[op.name]] for op in ops],
    }
    return {
        "ops": found,
        "steps": list(steps.known),
        "works": list(works.known),
        "accesses": list(accesses.known),
        "hues": [{"name": key, "fill": each.fill, "rim": each.rim} for key, each in looks.items()],
        "phases": list(phases),
    }


def arenas(schedule: Schedule, number: Mapping[str, int]) -> list[dict[str, Any]]:
    """Allocations that several buffers share in turn: where each lies, and which ops touch it."""
    users = users_of(schedule.program.ops)
    buffers = schedule.program.buffers
    found = []
    for each in schedule.memory.allocations:
        own = [
            {
                "name": name,
                "offset": slot.offset,
                "nbytes": buffers[name].nbytes,
                "shape": f"{buffers[name].dtype}{list(buffers[name].shape)}",
                "ops": [number[op] for op in users.get(name, ())],
            }
            for name, slot in schedule.memory.slots.items()
            if slot.allocation == each.name and buffers[name].role is Role.SCRATCH
        ]
        if own and each.nbytes:
            arena = {"name": each.name, "device": each.device, "nbytes": each.nbytes}
            found.append(arena | {"buffers": own})
    return found


def users_of(ops: Iterable[Op]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for op in ops:
        for access in op.accesses:
            found.setdefault(access.region.buffer, {})[op.name] = None
    return {name: list(users) for name, users in found.items()}


def told(view: View, number: Mapping[str, int], schedule: Schedule) -> dict[str, Any]:
    slices = [each for each in view.timeline.slices if each.op in number]
    streams = {each.name: at for at, each in enumerate(schedule.streams)}
    engines = Numbers()
    return {
        "label": view.label,
        "basis": view.basis,
        "source": view.timeline.source.value,
        "stopUs": round(view.timeline.stop_us, DIGITS),
        "op": [number[each.op] for each in slices],
        "stream": [streams[each.stream] for each in slices],
        "engine": [engines(each.engine) for each in slices],
        "engines": list(engines.known),
        "start": [round(each.start_us, DIGITS) for each in slices],
        "stop": [round(each.stop_us, DIGITS) for each in slices],
        "ready": [round(each.ready_us, DIGITS) for each in slices],
        "waits": [waits(each, number) for each in slices],
        "critical": [number[each] for each in view.critical if each in number],
        "facts": [list(each) for each in view.facts],
        "tables": [table_json(each) for each in view.tables],
    }


def waits(each: Slice, number: Mapping[str, int]) -> list[int]:
    return [number[name] for name in each.waited_for if name in number]


def table_json(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "note": table.note,
        "columns": [{"name": each.name, "kind": each.kind} for each in table.columns],
        "rows": [list(each) for each in table.rows],
    }
