"""Waits of a hand-written schedule that order nothing.

A wait (or host sync) is redundant if no race appears when all instances of that line are dropped
and all else stays. Two lines may each be redundant because of the other.
"""

from __future__ import annotations

from graphc.ir import Schedule, Sync, Wait
from graphc.text.diagnostics import NOWHERE, Span
from graphc.verify.examine import examine


def redundant_waits(schedule: Schedule) -> tuple[Span, ...]:
    """The lines with a wait or sync that alone can go without a race."""
    by_line: dict[tuple[Span, int], list[int]] = {}
    for index, each in enumerate(schedule.instructions):
        if isinstance(each, Wait | Sync):
            key = (each.span, -1 if each.span != NOWHERE else index)
            by_line.setdefault(key, []).append(index)
    return tuple(
        span
        for (span, _), indices in by_line.items()
        if not examine([schedule], "streams", frozenset(indices)).races
    )
