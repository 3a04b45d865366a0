"""Colours that colour-blind eyes tell apart and that carry dark text (after Paul Tol)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FILLS = (
    "#77aadd",
    "#ee8866",
    "#eedd88",
    "#44bb99",
    "#ffaabb",
    "#99ddff",
    "#bbcc33",
    "#c8a2d8",
    "#aaaa00",
    "#d9d9d9",
)


@dataclass(frozen=True, slots=True)
class Style:
    """A fill, and a rim for the rounds after the first, so that no two steps look alike."""

    fill: str
    rim: str


# Of lines, which have to show on white and on black.
CURVES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999")
RIMS = ("#ffffff", "#333333", "#aa3377", "#004488")


def styles(keys: Iterable[str]) -> Mapping[str, Style]:
    """A style for each key, in order of appearance."""
    found = dict.fromkeys(keys)
    return {
        key: Style(FILLS[index % len(FILLS)], RIMS[index // len(FILLS) % len(RIMS)])
        for index, key in enumerate(found)
    }
