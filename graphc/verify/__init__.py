"""Schedules -> Proof: no two conflicting accesses are unordered; or a report of the race.

This shares no code with the passes and trusts none of their results. Its input is what is issued:
the instructions, the regions of the ops and the physical addresses, of all entries of a plan.

1. *What happens before what* (``trace``): vector clocks over streams, events, the host, signals,
   and the caller, who writes what the layer reads before each launch and reads what it leaves.
2. *Launches* (``examine``): one of each entry proves all if nothing overlaps; else two are
   unrolled, and where units are launched freely, for every ordered pair of entries.
3. *What must be ordered* (``sweep``): two accesses conflict if they share bytes and one of them
   writes; only ``scatter`` by one argument among the pieces and ranks of one op in one launch, and
   ``accumulate`` on one buffer of an exact type by one argument of the same kernel with the same
   options and scalars, are exempt. Conflicting accesses must be ordered as the program has them (a
   hand-written schedule: as they are issued). A sweep of each buffer in that order checks every
   access against the accesses that are nearest below it, so that the rest follows.
4. *Memory* (``memory``): buffers that share physical bytes are ordered and in use one after the
   other, and what a buffer with a role keeps is nobody else's.

Regions are first worked out again (``regions``). Only an op that declares what it touches and runs
nothing (``Opaque``) is taken at its word. The progress rule of units is not looked at: that no
unit holds up what another waits for, as long as each runs what it can, follows from the order of
issue, in which every signal comes before what awaits it (``units``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from graphc.ir import Await, Schedule, Signal
from graphc.plan import Proof
from graphc.text.diagnostics import CompilerBug, Diagnostic, SpecError, render
from graphc.verify.examine import examine
from graphc.verify.explain import explain
from graphc.verify.faults import edge_faults, instruction_faults, memory_faults, sharing_faults
from graphc.verify.redundant import redundant_waits
from graphc.verify.regions import region_faults
from graphc.verify.trace import Order
from graphc.verify.units import entry_faults, unit_faults

MAX_RACES = 10


def verify(schedules: Schedule | Sequence[Schedule], *, order: Order = "streams") -> Proof:
    """Prove that no two conflicting accesses are unordered, or raise with the races by name.

    The schedules are all entries of a variant. A race is a ``SpecError`` in a hand-written
    schedule and a ``CompilerBug`` in one of ours.
    """
    every = (schedules,) if isinstance(schedules, Schedule) else tuple(schedules)
    is_handwritten = any(each.is_handwritten for each in every)
    found = faults(every, order)
    if found:
        refuse(found, is_handwritten=is_handwritten)
    sweep = examine(every, order)
    if sweep.races:
        races = [explain(race, order) for race in islice(sweep.races.values(), MAX_RACES)]
        refuse(races, is_handwritten=is_handwritten)
    if sweep.lost:
        refuse(list(sweep.lost.values()), is_handwritten=is_handwritten)
    redundant = redundant_waits(every[0]) if is_handwritten and order == "streams" else ()
    return Proof(
        sum(len(each.program.ops) for each in every),
        sweep.pairs,
        sweep.nbytes,
        redundant,
        **counts(every),
    )


def counts(schedules: Sequence[Schedule]) -> dict[str, int]:
    """How many units there are, and what orders them."""
    works = [op.work for each in schedules for op in each.program.ops]
    awaited = [one for each in works if isinstance(each, Await) for one in each.signals]
    handshakes = sum(each.is_handshake for each in awaited)
    return {
        "units": max(1, len({unit.name for each in schedules for unit in each.units})),
        "signals": sum(isinstance(each, Signal) for each in works),
        "awaits": len(awaited) - handshakes,
        "handshakes": handshakes,
    }


def faults(schedules: Sequence[Schedule], order: Order) -> list[Diagnostic]:
    """What leaves nothing to prove."""
    found: list[Diagnostic] = []
    for each in schedules:
        found += memory_faults(each)
        found += sharing_faults(each)
        found += instruction_faults(each)
        found += region_faults(each.program)
        found += unit_faults(each, order)
        if order == "edges":
            found += edge_faults(each)
    return found + list(entry_faults(schedules, order))


def refuse(faults: Sequence[Diagnostic], *, is_handwritten: bool) -> None:
    if is_handwritten:
        raise SpecError(faults[:MAX_RACES])
    raise CompilerBug("verify", "\n\n".join(render(each) for each in faults[:MAX_RACES]))
