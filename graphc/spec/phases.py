"""Phases: names for the ops whose times are summed up together."""

from __future__ import annotations

from collections.abc import Iterable

from graphc.spec.expand import Draft
from graphc.spec.faults import Faults
from graphc.spec.model import LayerSpec
from graphc.spec.names import NAME
from graphc.text.diagnostics import Note, Span
from graphc.text.suggest import did_you_mean


def phases_of(
    spec: LayerSpec, drafts: Iterable[Draft], written: Iterable[str], faults: Faults
) -> dict[str, tuple[str, ...]]:
    """Phase -> the ops of all iterations that it names, each in one phase at most.

    ``written`` are the ops that may be named, whether or not they are there at these values.
    """
    names: dict[str, list[str]] = {}
    for draft in drafts:
        names.setdefault(draft.key, []).append(draft.name)
    first: dict[str, Span] = {}
    for phase, keys in spec.phases.items():
        site = spec.site["phases"][phase]
        if not NAME.fullmatch(phase):
            faults.mistake("bad-name", f"'{phase}' cannot be a phase's name", site.key)
        for index, key in enumerate(keys):
            check_phase_op(key, site[index].span, first, written, faults)
    return {
        phase: tuple(name for key in keys for name in names.get(key, ()))
        for phase, keys in spec.phases.items()
    }


def check_phase_op(
    key: str, at: Span, first: dict[str, Span], written: Iterable[str], faults: Faults
) -> None:
    if key in first:
        text = f"'{key}' is in a phase already: its time counts once"
        faults.mistake("phase-conflict", text, at, Note("first here", first[key]))
    elif key not in written:
        hint = did_you_mean(key, written)
        faults.mistake("unknown-op", f"'{key}' is no op of this spec", at, hint=hint)
    first.setdefault(key, at)
