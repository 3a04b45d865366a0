"""The schedule's own values -> settings: emit, memory, streams, units and how they are launched."""

from __future__ import annotations

from typing import Any

from graphc.ir import Division, Emit, LaunchContract, Settings, Signalling
from graphc.spec.faults import Faults
from graphc.spec.ranks import Ranks
from graphc.spec.values import ScheduleInForce
from graphc.text.diagnostics import error
from graphc.text.expr import Scope, evaluate_count, evaluate_word
from graphc.text.load import kind
from graphc.text.suggest import did_you_mean

CHOICES = {
    "emit": tuple(each.value for each in Emit),
    "memory": ("concurrent", "tight"),
    "units": tuple(each.value for each in Division),
    "sync": tuple(each.value for each in Signalling),
    "launch": tuple(each.value for each in LaunchContract),
}


def settings_of(schedule: ScheduleInForce, scope: Scope, ranks: Ranks, faults: Faults) -> Settings:
    """The settings; a value with a mistake is that which stands first among its choices."""
    spec, site = schedule.spec, schedule.site
    chosen: dict[str, Any] = {name: known[0] for name, known in CHOICES.items()}
    for name, known in CHOICES.items():
        with faults.collecting():
            span = site[name].span
            value = evaluate_word(getattr(spec, name), scope, span)
            if value not in known:
                hint = did_you_mean(str(value), known)
                text = f"'{name}' is one of {', '.join(known)}, not {kind(value)}"
                raise error("bad-value", text, span, hint=hint)
            chosen[name] = value
    chosen["max_streams"] = 4
    with faults.collecting():
        span = site["max_streams"].span
        chosen["max_streams"] = int(evaluate_count(spec.max_streams, scope, span))
        if chosen["max_streams"] < 1:
            raise error("bad-value", "'max_streams' must be at least 1", span)
    check_units(chosen, schedule, ranks, faults)
    return Settings(
        emit=Emit(chosen["emit"]),
        memory=str(chosen["memory"]),
        max_streams=chosen["max_streams"],
        units=Division(chosen["units"]),
        sync=Signalling(chosen["sync"]),
        launch=LaunchContract(chosen["launch"]),
    )


def check_units(
    chosen: dict[str, Any], schedule: ScheduleInForce, ranks: Ranks, faults: Faults
) -> None:
    """Units can wait for each other as they are launched."""
    site = schedule.site
    if chosen["units"] == "rank" and not ranks.all:
        text = "'units' cannot be rank: this spec has no ranks"
        faults.mistake("bad-value", text, site["units"].span)
    elif chosen["units"] == "rank" and (pair := ranks.together()) is not None:
        text = (
            f"'units' cannot be rank: ranks {pair[0]} and {pair[1]} are both on "
            f"'{ranks.placed[pair[0]]}', and units on one device could wait for each "
            "other for ever"
        )
        hint = "use units: device, or give each rank a device of its own"
        faults.mistake("bad-value", text, site["units"].span, hint=hint)
    if chosen["sync"] == "memops" and chosen["launch"] == "free":
        text = "'sync' cannot be memops where 'launch' is free: its flags are used up"
        hint = "a unit may be a replay ahead of another: use sync: flags"
        faults.mistake("bad-value", text, site["sync"].span, hint=hint)
