"""``graphc check``: the proof in a line, or the race."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphc.cli.output import bytes_text, note, plural, print_json, progress, say
from graphc.cli.request import Request, refuse_plan
from graphc.text.diagnostics import NOWHERE, Span, quote

if TYPE_CHECKING:
    from graphc.ir import Schedule
    from graphc.plan import Proof


COUNTED = ("ops", "streams", "waits", "signals", "awaits", "handshakes")


def run_check(wanted: Request, *, is_json: bool) -> int:
    from graphc import api

    refuse_plan(wanted, "check")
    with progress() as doing:
        doing(f"checking {wanted.path}")
        found = api.check(wanted.path, **wanted.options())
    redundant = tuple(dict.fromkeys(span for _, proof in found for span in proof.redundant))
    if is_json:
        print_json(
            {
                "ok": True,
                "name": found[0][0].program.name,
                "is_handwritten": found[0][0].is_handwritten,
                "schedules": [
                    {"entry": schedule.entry, **facts(schedule, proof)} for schedule, proof in found
                ],
                "redundant_waits": [place(span) for span in redundant],
            }
        )
        return 0
    say(summary(found))
    for span in redundant:
        note("\n".join([f"{span}: note: this wait orders nothing that is not ordered already"]))
        note("\n".join(quote(span, None)))
    return 0


def summary(found: list[tuple[Schedule, Proof]]) -> str:
    """One line, whatever the number of schedules."""
    each = [facts(schedule, proof) for schedule, proof in found]
    total = {key: sum(fact[key] for fact in each) for key in COUNTED}
    proofs = {id(proof): proof for _, proof in found}.values()  # one for all entries
    pairs = sum(proof.pairs for proof in proofs)
    nbytes = sum(proof.nbytes for proof in proofs)
    entries = tuple(dict.fromkeys(schedule.entry for schedule, _ in found))
    reasons = [
        *([f"entries {', '.join(entries)}"] if len(entries) > 1 else []),
        *(["one for each route of 'auto'"] if len(proofs) > 1 else []),
    ]
    several = f" in {len(found)} schedules ({'; '.join(reasons)})" if reasons else ""
    return (
        f"{found[0][0].program.name}: no race{several}: {plural(total['ops'], 'op')} on "
        f"{plural(total['streams'], 'stream')} with {plural(total['waits'], 'wait')}, "
        f"{units_text(each[0]['units'], total)}"
        f"{plural(pairs, 'pair')} of conflicting accesses compared over {bytes_text(nbytes)}"
    )


def units_text(units: int, total: dict[str, int]) -> str:
    """What orders units, if there are several: signals are ops, awaits are signals awaited."""
    if units == 1:
        return ""
    return (
        f"in {units} units with {plural(total['signals'], 'signal')} awaited "
        f"{plural(total['awaits'], 'time')} in their launch and "
        f"{plural(total['handshakes'], 'time')} in the next (handshakes), "
    )


def facts(schedule: Schedule, proof: Proof) -> dict[str, Any]:
    from graphc.ir import Wait
    from graphc.verify import counts

    return {
        **counts([schedule]),
        "ops": len(schedule.program.ops),
        "streams": len(schedule.streams),
        "waits": sum(isinstance(each, Wait) for each in schedule.instructions),
        "pairs": proof.pairs,
        "bytes": proof.nbytes,
    }


def place(span: Span) -> dict[str, Any] | None:
    if span == NOWHERE:
        return None
    return {"file": span.file, "line": span.line, "column": span.column}
