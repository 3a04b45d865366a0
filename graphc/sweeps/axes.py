"""Axes of a sweep: a param or a value of the schedule, and what it is set to.

``a,b,c`` are values; ``1:64`` are the numbers from 1 to 64, both of them included, ``1:64:4`` every
fourth from 1 on, ``1:64:x2`` doubles from 1 on; ``[1/4, 3/4]`` is one value, a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from graphc.api import plain_value
from graphc.text.diagnostics import UsageError
from graphc.text.words import Value, parts, value_of

MOST_VALUES = 100_000  # of one axis
NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?"
RANGE = re.compile(rf"({NUMBER}):({NUMBER})(?::(x?)({NUMBER}))?")
LOOKS_LIKE_RANGE = re.compile(r"[-+.\d]*:[-+.\dx]*(:[-+.\dx]*)?")
NAME = re.compile(r"[A-Za-z_][\w./-]*")


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied, by its name or path, over which values."""

    name: str
    values: tuple[Value, ...]

    @property
    def path(self) -> str:
        """The name without the ``schedule.`` that may stand before it."""
        return self.name.removeprefix("schedule.")


def parse_axis(word: str) -> Axis:
    """
    >>> parse_axis("pieces=1:8:x2,12").values, parse_axis("early=true,false").values
    ((1, 2, 4, 8, 12), (True, False))
    >>> parse_axis("schedule.cuts.compute=[3/8, 3/8, 1/4],2").values
    (['3/8', '3/8', '1/4'], 2)
    """
    name, equals, values = word.partition("=")
    if not equals or not NAME.fullmatch(name.strip()):
        raise UsageError(f"an axis is written name=values, as pieces=1:64 is; found '{word}'")
    return axis_of(name.strip(), values)


def axes_of(given: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Axes as a call gives them: lists, ranges, or words as on the command line."""
    return checked(tuple(axis_of(name, values) for name, values in given.items()))


def checked(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    if not axes:
        raise UsageError("a sweep needs at least one axis, such as pieces=1:64")
    names = [each.path for each in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"there are two axes '{name}': give all of its values to one")
    return axes


def axis_of(name: str, given: Any) -> Axis:
    values = list(words_of(name, given) if isinstance(given, str) else listed(name, given))
    if not values:
        raise UsageError(f"axis '{name}' has no values: write {name}=1,2,4 or {name}=1:8")
    if len(values) > MOST_VALUES:
        raise UsageError(f"axis '{name}' has {len(values)} values: at most {MOST_VALUES} are known")
    return Axis(name, tuple(distinct(values)))


def listed(name: str, given: Any) -> Iterable[Value]:
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise UsageError(
            f"axis '{name}': expected a list of values or a word such as '1:64', found {given!r}"
        )
    return map(plain_value, given)


def words_of(name: str, text: str) -> Iterable[Value]:
    if not text.strip():
        return
    for part in map(str.strip, parts(text)):
        if not part:
            raise UsageError(f"axis '{name}': there is nothing between two commas of '{text}'")
        if found := RANGE.fullmatch(part):
            yield from range_of(name, part, *found.groups())
        elif LOOKS_LIKE_RANGE.fullmatch(part):
            raise UsageError(
                f"axis '{name}': '{part}' is no range: write 1:64, 1:64:4 (every fourth) or "
                "1:64:x2 (doubling)"
            )
        elif part.startswith("[") != part.endswith("]"):
            raise UsageError(f"axis '{name}': a list begins and ends with a bracket, not '{part}'")
        else:
            yield value_of(part)


def range_of(
    name: str, word: str, first: str, last: str, times: str | None, step: str | None
) -> Iterable[Value]:
    """The numbers of a range, both ends included.

    >>> list(range_of("a", "0:1:0.25", "0", "1", "", "0.25"))
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    start, stop, by = Decimal(first), Decimal(last), Decimal(step or "1")
    if start > stop:
        raise UsageError(f"axis '{name}': {word} is empty, for {first} is above {last}")
    if times and (by <= 1 or start <= 0):
        raise UsageError(
            f"axis '{name}': {word} never ends: it starts above 0 and grows by more than x1"
        )
    if by <= 0:
        raise UsageError(f"axis '{name}': {word} never ends: its step must be above 0")
    is_whole = not any("." in each for each in (first, last, step or ""))
    value, count = start, 0
    while value <= stop:
        if (count := count + 1) > MOST_VALUES:
            raise UsageError(f"axis '{name}': {word} has more than {MOST_VALUES} values")
        yield int(value) if is_whole else float(value)
        value = value * by if times else value + by


def distinct(values: Iterable[Value]) -> Iterable[Value]:
    """Each value once; true is not 1 here."""
    seen = set()
    for each in values:
        if (key := repr(each)) not in seen:
            seen.add(key)
            yield each
