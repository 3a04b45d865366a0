"""All accesses of the replays that must be looked at, and the races among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphc.dtypes import dtype
from graphc.ir import Access, Extern, Kernel, Mode, Op, Role, Schedule
from graphc.regions import Region
from graphc.verify.memory import sweep_memory
from graphc.verify.sweep import Sweep, Touch, sweep_buffer
from graphc.verify.trace import Action, Order, Trace, trace_edges, trace_streams

WRITTEN_BY_CALLER = (Role.INPUT, Role.INOUT, Role.WEIGHT, Role.STATE)
READ_BY_CALLER = (Role.OUTPUT, Role.INOUT, Role.STATE, Role.STATUS)


def examine(schedule: Schedule, order: Order, dropped: frozenset[int] = frozenset()) -> Sweep:
    """Sweep all accesses of one replay, or of two if one does not contain the other."""
    trace = trace_edges(schedule) if order == "edges" else trace_streams(schedule, 1, dropped)
    loose = list(trace.loose_ends())
    if loose:
        trace = trace_streams(schedule, 2, dropped)
    sweep = Sweep(trace)
    touches = touches_by_buffer(schedule, trace, with_caller=bool(loose))
    for name, each in touches.items():
        sweep_buffer(sweep, each, name)
    sweep_memory(sweep, schedule, touches)
    # Accesses first: they say more than that a stream is not joined.
    for one, two in trace.loose_ends() if loose else ():
        if not trace.is_host(one) and not trace.is_host(two):
            sweep.report(one, two, None, None, "")
    return sweep


def touches_by_buffer(
    schedule: Schedule, trace: Trace, *, with_caller: bool
) -> dict[str, list[Touch]]:
    """All accesses of each buffer, in the order that defines the right result."""
    buffers = schedule.program.buffers
    exact = {name for name, each in buffers.items() if not dtype(each.dtype).is_float}
    result: dict[str, list[Touch]] = {}
    numbers = sorted(range(len(trace.actions)), key=lambda n: trace.actions[n].rank)
    for number in numbers:
        action = trace.actions[number]
        if action.op is not None:
            accesses: Iterable[Access] = action.op.accesses
        else:
            accesses = caller_accesses(schedule, action.rank[1] < 0) if with_caller else ()
        for access in accesses:
            if access.region.start < access.region.stop:
                key = commuting(action, access, access.region.buffer in exact)
                result.setdefault(access.region.buffer, []).append(Touch(number, access, key))
    return result


def caller_accesses(schedule: Schedule, is_begin: bool) -> Iterator[Access]:
    roles, mode = (WRITTEN_BY_CALLER, Mode.WRITE) if is_begin else (READ_BY_CALLER, Mode.READ)
    for name, buffer in schedule.program.buffers.items():
        if buffer.role in roles:
            stop = buffer.nominal_rows(schedule.program.nominal) * buffer.row_nbytes
            yield Access("caller", Region(name, 0, stop), mode)


def commuting(action: Action, access: Access, is_exact: bool) -> object:
    if access.mode is Mode.READ:
        return "read"
    if action.op is None:
        return None
    if access.mode is Mode.SCATTER:
        return action.op.step, access.argument, action.replay
    if access.mode is Mode.ACCUMULATE and is_exact:
        return "accumulate", access.argument, *operation(action.op)
    return None


def operation(op: Op) -> tuple[object, ...]:
    """What decides how an op combines values: two kernels may do it in two ways."""
    work = op.work
    if isinstance(work, Kernel):
        return work.template, frozenset(work.options.items()), frozenset(work.scalars.items())
    if isinstance(work, Extern):
        return work.function, work.reference, frozenset(work.scalars.items())
    return (op.step,)
