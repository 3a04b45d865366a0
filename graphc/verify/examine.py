"""The launches that must be looked at, and the races in them.

If every action is after the beginning and before the end of its launch, all of one launch is
before all of the next, and one launch of each entry proves all. Else two are unrolled, on the same
streams and events, and both are swept. Units that are launched freely overlap: two launches are
unrolled for every ordered pair of entries. That proves any sequence: what lies between two launches
only adds order, since an await knows the latest earlier launch of the entry that it names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from graphc.ir import Schedule
from graphc.text.diagnostics import Diagnostic
from graphc.verify.accesses import touches_by_home
from graphc.verify.memory import sweep_memory
from graphc.verify.sweep import Race, Sweep, sweep_buffer
from graphc.verify.trace import Order, is_free, trace_launches


@dataclass(slots=True)
class Found:
    """What was compared in all sweeps, and what was found."""

    races: dict[tuple[str, ...], Race] = field(default_factory=dict)
    lost: dict[tuple[str, str], Diagnostic] = field(default_factory=dict)
    pairs: int = 0
    nbytes: int = 0


def examine(
    schedules: Sequence[Schedule], order: Order, dropped: frozenset[int] = frozenset()
) -> Found:
    """Sweep all accesses of all launches that must be looked at."""
    found = Found()
    for launches in unrolled(schedules):
        sweep = sweep_launches(launches, order, dropped)
        for race, each in sweep.races.items():
            found.races.setdefault(race, each)
        for names, diagnostic in sweep.lost.items():
            found.lost.setdefault(names, diagnostic)
        found.pairs += sweep.pairs
        if launches[0] is launches[-1]:
            found.nbytes += sweep.nbytes
    return found


def unrolled(schedules: Sequence[Schedule]) -> Iterator[tuple[Schedule, ...]]:
    if any(is_free(each) for each in schedules):
        yield from product(schedules, repeat=2)
    else:
        yield from ((each,) for each in schedules)


def sweep_launches(launches: tuple[Schedule, ...], order: Order, dropped: frozenset[int]) -> Sweep:
    trace = trace_launches(launches, order, dropped)
    loose = list(trace.loose_ends())
    if loose and len(launches) == 1:
        launches *= 2
        trace = trace_launches(launches, order, dropped)
    sweep = Sweep(trace)
    touches = touches_by_home(trace, launches, with_caller=len(launches) > 1)
    for each in touches.values():
        sweep_buffer(sweep, each)
    sweep_memory(sweep, touches)
    # Accesses first: they say more than that a stream is not joined.
    for one, two in trace.loose_ends() if loose else ():
        if not trace.is_host(one) and not trace.is_host(two):
            sweep.report(one, two, None, None, "")
    return sweep
