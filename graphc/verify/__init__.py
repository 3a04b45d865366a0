"""Schedule -> Proof: no two conflicting accesses are unordered; or a report of the race.

This shares no code with the passes and trusts none of their results. Its input is what is issued:
the instructions, the regions of the ops and the physical addresses.

1. *What happens before what.* Every op that runs is an action with direct predecessors: the action
   before it on its stream, what the events it waited for had seen at their latest record, and what
   the host had waited for when it issued the op. Host ops run on the issuing thread. The caller is
   an actor, too: it writes what the layer reads before each replay and reads what the layer leaves
   after it, on its own stream, which is the origin. A launch begins at the origin's start and ends
   at its end. Vector clocks over chains (the streams; in ``order="edges"``, paths chosen greedily)
   answer whether one action is before another.
2. *Replays.* If every action is after the beginning and before the end of its launch, all of one
   replay is before all of the next, and one replay proves all. Else two are unrolled, on the same
   streams and events, and both are swept.
3. *What must be ordered.* Two accesses conflict if they share bytes and one of them writes; only
   ``scatter`` by one argument within one step and replay, and ``accumulate`` on one buffer of an
   exact type by one argument of the same kernel with the same options and scalars, are exempt.
   Conflicting accesses must be ordered as the program has them (a hand-written schedule: as they
   are issued). A sweep of each buffer in that order checks every access against the accesses that
   are nearest below it, so that the rest follows.
4. *Memory.* Buffers that share physical bytes conflict by their exact bytes if both are fixed, as
   wholes if the count governs either. Where all accesses of one are before all of the other
   nothing more is to be shown; else all pairs of accesses are compared. Order alone would not keep
   bytes from being overwritten before they are read: so buffers over one memory are in use one
   after the other, and what a buffer with a role keeps is nobody else's. Overlays are exempt.

Regions are first worked out again: from an access's rows, the op's piece and axis, and the buffer.
Only an op that declares what it touches and runs nothing (``Opaque``) is taken at its word.

A wait (or host sync) of a hand-written schedule is redundant if no race appears when all instances
of that line are dropped and all else stays. Two lines may each be redundant because of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir import Schedule
from graphc.plan import Proof
from graphc.text.diagnostics import CompilerBug, Diagnostic, SpecError, render
from graphc.verify.examine import examine
from graphc.verify.explain import explain
from graphc.verify.faults import edge_faults, instruction_faults, memory_faults, sharing_faults
from graphc.verify.redundant import redundant_waits
from graphc.verify.regions import region_faults
from graphc.verify.trace import Order

MAX_RACES = 10


def verify(schedule: Schedule, *, order: Order = "streams") -> Proof:
    """Prove that no two conflicting accesses are unordered, or raise with the races by name.

    A race is a ``SpecError`` in a hand-written schedule and a ``CompilerBug`` in one of ours.
    """
    faults = [*memory_faults(schedule), *sharing_faults(schedule), *instruction_faults(schedule)]
    faults += region_faults(schedule.program)
    if order == "edges":
        faults += edge_faults(schedule)
    if faults:
        refuse(schedule, faults)
    sweep = examine(schedule, order)
    if sweep.races:
        refuse(schedule, [explain(race, schedule, order) for race in sweep.races.values()])
    if sweep.lost:
        refuse(schedule, list(sweep.lost.values()))
    redundant = redundant_waits(schedule) if schedule.is_handwritten and order == "streams" else ()
    return Proof(len(schedule.program.ops), sweep.pairs, sweep.nbytes, redundant)


def refuse(schedule: Schedule, faults: Sequence[Diagnostic]) -> None:
    if schedule.is_handwritten:
        raise SpecError(faults[:MAX_RACES])
    raise CompilerBug("verify", "\n\n".join(render(each) for each in faults[:MAX_RACES]))
