"""Status buffers: what kernels say of a replay that they could not do as asked.

A contract says of such an argument what each code means (``faults``). The first word of its buffer
is the code, and 0 if all went well; what it means may name the words after it, as ``{1}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphc.ir import Buffer, Kernel, Op, Role, Schedule
from graphc.plan import Plan, Variant
from graphc.text.diagnostics import UsageError


@dataclass(frozen=True, slots=True)
class Status:
    """A buffer in which ops may leave a code."""

    buffer: Buffer
    writers: tuple[tuple[Op, Mapping[str, str]], ...]  # each with its codes and what they mean

    def fault(self, code: int, *more: int) -> UsageError:
        """What a code means; ``more`` are the words after it."""
        for op, faults in self.writers:
            if str(code) in faults:
                meaning = faults[str(code)]
                for number, word in enumerate(more, 1):
                    meaning = meaning.replace(f"{{{number}}}", str(word))
                return UsageError(f"op '{op.step}': {meaning}")
        op, _ = self.writers[-1]
        return UsageError(f"op '{op.step}': it left code {code}, which its contract does not name")


def raise_all(faults: Sequence[UsageError]) -> None:
    """Raise what was found in all buffers, once: the first, with the others as notes.

    All are cleared by then, so that none is told of a later launch.
    """
    if not faults:
        return
    first, *others = faults
    for each in others:
        first.add_note(str(each))
    raise first


def statuses(plan: Plan, variant: Variant, schedule: Schedule) -> tuple[Status, ...]:
    """What is to be looked at after a replay of a schedule: each buffer with those who write it.

    The code may be of another entry's op, if that has been launched since the last look.
    """
    own = writers(plan, variant, schedule)
    for other in variant.schedules.values():
        for name, found in writers(plan, variant, other).items():
            if name in own:
                own[name] = {**found, **own[name]}
    buffers = schedule.program.buffers
    return tuple(Status(buffers[name], tuple(each.values())) for name, each in own.items())


def writers(
    plan: Plan, variant: Variant, schedule: Schedule
) -> dict[str, dict[str, tuple[Op, Mapping[str, str]]]]:
    """Status buffer -> step -> an op that tells of faults there, and its codes."""
    found: dict[str, dict[str, tuple[Op, Mapping[str, str]]]] = {}
    buffers = schedule.program.buffers
    for op in schedule.program:
        if not isinstance(op.work, Kernel):
            continue
        faults = plan.images[variant.images[op.step]].faults
        for access in op.accesses if faults else ():
            name = access.region.buffer
            if access.argument in faults and buffers[name].role is Role.STATUS:
                found.setdefault(name, {})[op.step] = op, faults[access.argument]
    return found
