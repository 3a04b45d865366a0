"""A race in words: both ops, the bytes, the missing order and the least that would mend it."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir import Access, Hazard, Instruction, Mode, Record, Schedule
from graphc.text.diagnostics import Diagnostic, Note
from graphc.verify.sweep import Race
from graphc.verify.trace import Action, Order


def explain(race: Race, schedule: Schedule, order: Order) -> Diagnostic:
    """The race in words: both ops, the bytes, the missing order and what would mend it."""
    one, two = race.one, race.two
    if race.one_access is None or race.two_access is None:
        return explain_loose_end(race)
    hazard = hazard_between(race.one_access.mode, race.two_access.mode)
    across = " of the replay before" if one.replay != two.replay else ""
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
        hint=mend(race, schedule, order),
    )


def explain_loose_end(race: Race) -> Diagnostic:
    """A stream that is not forked from the origin, or does not join it."""
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


def label(action: Action) -> str:
    if action.op is None or action.op.piece.of == 1:
        return action.name
    return f"{action.name} (piece {action.op.piece.index} of {action.op.piece.of})"


def describe(action: Action, access: Access) -> str:
    where = f" on stream '{action.stream}'" if action.stream else ""
    return f"'{action.name}' touches {access.region} ({access.mode}){where}"


def hazard_between(one: Mode, two: Mode) -> Hazard:
    if one.is_write:
        return Hazard.RAW if two.is_read else Hazard.WAW
    return Hazard.WAR


def mend(race: Race, schedule: Schedule, order: Order) -> str:
    """The least that orders the two: an edge, a wait for a record at hand, or both."""
    one, two = race.one, race.two
    if order == "edges":
        return f"add the edge '{one.name}' -> '{two.name}'"
    if two.op is None:
        return f"at the end, let '{schedule.origin}' wait for an event recorded after '{one.name}'"
    if one.op is None:
        return f"on '{two.stream}', before '{two.name}', wait for an event of '{schedule.origin}'"
    if one.replay == two.replay and one.issued > two.issued:
        return f"issue '{one.name}' before '{two.name}'"
    if one.stream == two.stream:
        return f"run '{one.name}' before '{two.name}'"
    event = record_at_hand(schedule.instructions, one, two)
    if event is not None:
        return f"on '{two.stream}', before '{two.name}', wait for event '{event}'"
    return (
        f"record an event on '{one.stream}' after '{one.name}' "
        f"and wait for it on '{two.stream}' before '{two.name}'"
    )


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
