"""A race in words: both ops, the bytes, the missing order and the least that would mend it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from graphc.ir import Access, Begin, Hazard, Instruction, Mode, Op, Record, Signal
from graphc.text.diagnostics import Diagnostic, Note
from graphc.verify.sweep import Race
from graphc.verify.trace import Action, Order


def explain(race: Race, order: Order) -> Diagnostic:
    """The race in words: both ops, the bytes, the missing order and what would mend it."""
    one, two = race.one, race.two
    if race.one_access is None or race.two_access is None:
        return explain_loose_end(race)
    hazard = hazard_between(race.one_access.mode, race.two_access.mode)
    across = ""
    if one.replay != two.replay:
        is_same = one.schedule.entry == two.schedule.entry
        across = " of the replay before" if is_same else f" of '{one.schedule.entry}' before"
    return Diagnostic(
        "race",
        f"race: '{label(two)}' and '{label(one)}'{across} touch {race.touched} ({hazard}), "
        f"and nothing orders '{one.name}' before '{two.name}'",
        two.span,
        notes=(
            Note(describe(one, race.one_access), one.span),
            Note(describe(two, race.two_access), two.span),
            Note(f"the missing order: '{one.name}' before '{two.name}'"),
        ),
        hint=mend(race, order),
    )


def explain_loose_end(race: Race) -> Diagnostic:
    """A stream that is not forked from the origin, or does not join it."""
    if race.one.op is not None and isinstance(race.one.op.work, Begin):
        return explain_unbegun(race.one, race.two)
    is_fork = race.one.op is None
    own, verb = (race.two, "begin") if is_fork else (race.one, "still run")
    moment = "before the launch begins" if is_fork else "after the launch has ended"
    fix = (
        f"on '{own.stream}', wait for an event recorded where the origin begins"
        if is_fork
        else f"at the end, let the origin wait for an event recorded after '{own.name}'"
    )
    return Diagnostic(
        "race",
        f"race: '{label(own)}' on stream '{own.stream}' may {verb} {moment}, "
        "so that it races with the caller and with the next replay",
        own.span,
        hint=fix,
    )


def explain_unbegun(begin: Action, own: Action) -> Diagnostic:
    return Diagnostic(
        "race",
        f"race: '{label(own)}' may run before '{begin.name}' has counted the launch of "
        f"unit '{own.unit}'",
        own.span,
        hint=f"order it behind '{begin.name}'",
    )


def label(action: Action) -> str:
    op = action.op
    if op is None:
        return action.name
    which = rank_of(op)
    if op.piece.of > 1:
        which.append(f"piece {op.piece.index} of {op.piece.of}")
    return f"{op.name} ({', '.join(which)})" if which else op.name


def rank_of(op: Op) -> list[str]:
    """What the step says beyond its family: ``["rank 3"]`` of ``rank.3/dispatch``."""
    if not op.family or op.family == op.step:
        return []
    steps, family = op.step.split("/"), op.family.split("/")
    own = next((one for one, other in zip_longest(steps, family) if one != other), None)
    return [own.replace(".", " ")] if own else []


def describe(action: Action, access: Access) -> str:
    where = f" on stream '{action.stream}'" if action.stream else ""
    unit = f" in unit '{action.unit}'" if action.unit else ""
    return f"'{action.name}' touches {access.region} ({access.mode}){where}{unit}"


def hazard_between(one: Mode, two: Mode) -> Hazard:
    if one.is_write:
        return Hazard.RAW if two.is_read else Hazard.WAW
    return Hazard.WAR


def mend(race: Race, order: Order) -> str:
    """The least that orders the two: an edge, a wait for a record at hand, or both."""
    one, two = race.one, race.two
    if one.unit != two.unit:
        return mend_across_units(race)
    origin = origin_of(two)
    if order == "edges":
        return f"add the edge '{one.name}' -> '{two.name}'"
    if two.op is None:
        return f"at the end, let '{origin}' wait for an event recorded after '{one.name}'"
    if one.op is None:
        return f"on '{two.stream}', before '{two.name}', wait for an event of '{origin}'"
    if one.replay == two.replay and one.issued > two.issued:
        return f"issue '{one.name}' before '{two.name}'"
    if one.stream == two.stream:
        return f"run '{one.name}' before '{two.name}'"
    event = record_at_hand(one.schedule.instructions, one, two)
    if event is not None:
        return f"on '{two.stream}', before '{two.name}', wait for event '{event}'"
    return (
        f"record an event on '{one.stream}' after '{one.name}' "
        f"and wait for it on '{two.stream}' before '{two.name}'"
    )


def origin_of(action: Action) -> str:
    schedule = action.schedule
    return next((u.origin for u in schedule.units if u.name == action.unit), schedule.origin)


def mend_across_units(race: Race) -> str:
    """A signal, and an await: in this launch, or (a handshake) in the launch after."""
    one, two = race.one, race.two
    if two.op is None:
        return (
            f"signal unit '{two.unit}' after '{one.name}' and let it await that before it ends, "
            f"in '{one.schedule.entry}'"
        )
    if one.op is None:
        return f"signal unit '{two.unit}' as '{one.unit}' begins and await it before '{two.name}'"
    signal = signal_at_hand(race)
    if signal is None:
        ask = f"signal unit '{two.unit}' after '{one.name}' and await it"
    elif two.unit in signal.to:
        ask = f"await signal '{signal.signal}'"
    else:
        ask = f"send signal '{signal.signal}' to unit '{two.unit}', too, and await it"
    if one.replay == two.replay:
        return f"{ask} before '{two.name}'"
    return f"a handshake: {ask} before '{two.name}' in the launch after"


def signal_at_hand(race: Race) -> Signal | None:
    """A signal of the first op's unit that is sent after it, and in time."""
    one, two = race.one, race.two
    for each in race.trace.actions:
        if each is two:
            return None
        if each.op is None or each.unit != one.unit or each.replay != one.replay:
            continue
        work = each.op.work
        if isinstance(work, Signal) and each.clock.get(one.chain, -1) >= one.position:
            return work
    return None


def record_at_hand(instructions: Sequence[Instruction], one: Action, two: Action) -> str | None:
    """The first event recorded after the first op that still stands when the second is issued."""
    stop = two.issued if one.replay == two.replay else len(instructions)
    window = instructions[one.issued + 1 : stop]
    for index, each in enumerate(window):
        if isinstance(each, Record) and each.stream == one.stream:
            again = (other for other in window[index + 1 :] if isinstance(other, Record))
            if all(other.event != each.event for other in again):
                return each.event
    return None
