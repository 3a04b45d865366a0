"""What a schedule uses: streams, events, waits, edges, ops by kind, and bytes by memory.

Set beside the same spec with one piece it shows what the pieces cost; what is not asked for is
not created.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from graphc.ir import MAPPED, Kernel, Record, Schedule, Wait


@dataclass(frozen=True, slots=True)
class Resources:
    streams: int
    events: int
    records: int
    waits: int
    edges: int  # true dependencies, without those that follow from others
    ops: int
    ops_by_kind: Mapping[str, int]  # kernels by template: {"copy": 3, "kernel convert": 3}
    nbytes: Mapping[str, int]  # by device; MAPPED for the memory that all see


def resources(schedule: Schedule) -> Resources:
    """Count what the schedule asks for."""
    records = [each for each in schedule.instructions if isinstance(each, Record)]
    nbytes: Counter[str] = Counter(dict.fromkeys(schedule.program.devices, 0))
    for allocation in schedule.memory.allocations:
        nbytes[allocation.device] += allocation.nbytes
    return Resources(
        streams=len(schedule.streams),
        events=len({each.event for each in records}),
        records=len(records),
        waits=sum(isinstance(each, Wait) for each in schedule.instructions),
        edges=len(schedule.edges),
        ops=len(schedule.program.ops),
        ops_by_kind=dict(sorted(ops_by_kind(schedule).items())),
        nbytes=dict(nbytes),
    )


def ops_by_kind(schedule: Schedule) -> Counter[str]:
    works = (op.work for op in schedule.program)
    return Counter(
        f"kernel {work.template}" if isinstance(work, Kernel) else work.kind for work in works
    )


def resource_rows(columns: Mapping[str, Resources]) -> list[tuple[str, ...]]:
    """A table: a title row with the columns' names, then a row for each resource."""
    used = list(columns.values())
    rows: list[tuple[str, ...]] = [("", *columns)]
    for name in ("ops", "streams", "events", "waits", "edges"):
        rows.append((name, *(str(getattr(each, name)) for each in used)))
    for kind in sorted({kind for each in used for kind in each.ops_by_kind}):
        rows.append((f"ops: {kind}", *(str(each.ops_by_kind.get(kind, 0)) for each in used)))
    for device in dict.fromkeys(device for each in used for device in each.nbytes):
        label = "bytes: host, mapped" if device == MAPPED else f"bytes: {device}"
        rows.append((label, *(f"{each.nbytes.get(device, 0):,}" for each in used)))
    return rows


def resource_table(columns: Mapping[str, Resources]) -> str:
    """The table as text, numbers to the right."""
    rows = resource_rows(columns)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines) + "\n"
