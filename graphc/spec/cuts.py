"""Pieces and shares -> bounds, and the named cuts, whose parts the schedule sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import lcm
from typing import Any

from graphc.spec.faults import Faults
from graphc.spec.model import LayerSpec
from graphc.spec.values import ScheduleInForce
from graphc.text.diagnostics import Span, error
from graphc.text.expr import Scope, evaluate_count, evaluate_number, evaluate_word
from graphc.text.load import Site
from graphc.text.suggest import did_you_mean

MOST_PIECES = 65536
MOST_PARTS = 2**31 - 1  # kernels are told in 32 bits
FRACTION = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Cut:
    """A named partition: what it cuts, and the bounds of its parts from 0 to 1."""

    name: str
    extent: int
    bounds: tuple[Fraction, ...]
    span: Span

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(self.bounds) - 1


def cuts_of(
    spec: LayerSpec, schedule: ScheduleInForce, scope: Scope, faults: Faults
) -> dict[str, Cut]:
    """The named cuts; one with a mistake is whole."""
    site, given = schedule.site["cuts"], schedule.spec.cuts
    for name in given:
        if name not in spec.cuts:
            hint = did_you_mean(name, spec.cuts)
            faults.mistake("unknown-cut", f"no cut '{name}'", site[name].key, hint=hint)
    found: dict[str, Cut] = {}
    for name, cut in spec.cuts.items():
        at = spec.site["cuts"][name]
        bounds: tuple[Fraction, ...] = (Fraction(0), Fraction(1))
        extent = 0
        with faults.collecting():
            extent = evaluate_count(cut.extent, scope, at["extent"].span)
        with faults.collecting():
            if name in given:
                bounds = bounds_of(given[name], scope, site[name])
        found[name] = Cut(name, extent, bounds, at.key)
    return found


def cut_named(name: str, cuts: Mapping[str, Cut], span: Span) -> Cut:
    if name not in cuts:
        hint = did_you_mean(name, cuts) or (
            f"the cuts are {', '.join(cuts)}" if cuts else "add it under cuts:"
        )
        raise error("unknown-cut", f"no cut '{name}'", span, hint=hint)
    return cuts[name]


def bounds_of(pieces: Any, scope: Scope, site: Site) -> tuple[Fraction, ...]:
    """The bounds of pieces: of equal ones from their number, else from their shares."""
    if isinstance(pieces, list):
        return bounds_of_shares(pieces, scope, site)
    count = evaluate_word(pieces, scope, site.span)
    if isinstance(count, list):
        return bounds_of_shares(count, scope, site)
    count = evaluate_count(count, scope, site.span)
    if not 1 <= count <= MOST_PIECES:
        raise error("bad-pieces", f"pieces go from 1 to {MOST_PIECES}, not {count}", site.span)
    return tuple(Fraction(index, count) for index in range(count + 1))


def bounds_of_shares(shares: list[Any], scope: Scope, site: Site) -> tuple[Fraction, ...]:
    """
    >>> from graphc.text.load import parse_yaml
    >>> site = parse_yaml("a: 1", "f").root
    >>> [str(bound) for bound in bounds_of_shares(["1/4", 0.25, "1/2"], {}, site)]
    ['0', '1/4', '1/2', '1']
    """
    if len(shares) > MOST_PIECES:
        raise error("bad-pieces", f"at most {MOST_PIECES} pieces are known", site.span)
    found = [share_of(each, scope, site[index].span) for index, each in enumerate(shares)]
    total = sum(found, Fraction(0))
    if total != 1:
        hint = None
        if all(each.denominator == 1 for each in found):
            hint = f"write {', '.join(str(each / total) for each in found)}"
        raise error("bad-pieces", f"the shares add up to {total}, not to 1", site.span, hint=hint)
    bounds = (Fraction(0), *accumulate(found))
    parts = lcm(*(each.denominator for each in bounds))
    if parts > MOST_PARTS:
        text = f"the shares are counted in parts of 1/{parts}: at most {MOST_PARTS} parts are known"
        hint = "write shares with a smaller common denominator"
        raise error("bad-pieces", text, site.span, hint=hint)
    return bounds


def share_of(share: Any, scope: Scope, span: Span) -> Fraction:
    match = FRACTION.fullmatch(share.strip()) if isinstance(share, str) else None
    if match and int(match[2]):
        found = Fraction(int(match[1]), int(match[2]))
    else:
        value = evaluate_number(share, scope, span)
        found = Fraction(str(value)).limit_denominator(10**9)
    if found <= 0:
        raise error("bad-pieces", f"a share must be above 0, not {share}", span)
    return found
