"""Guesses at what a wrong name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint with the nearest known name, or None if none is near.

    >>> did_you_mean("inptus", ["inputs", "outputs"])
    "did you mean 'inputs'?"
    """
    near = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else None
