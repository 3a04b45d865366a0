"""Axes: words and lists become values; what is none is refused with a way out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from graphc.sweeps.axes import axes_of, parse_axis
from graphc.text.diagnostics import UsageError


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("route=host,p2p", ("host", "p2p")),
        ("pieces=1:4", (1, 2, 3, 4)),
        ("pieces=1:64:4", tuple(range(1, 65, 4))),
        ("pieces=1:64:x2", (1, 2, 4, 8, 16, 32, 64)),
        ("pieces=3:100:x3,7", (3, 9, 27, 81, 7)),
        ("pieces=5:5", (5,)),
        ("pieces=-2:1", (-2, -1, 0, 1)),
        ("share=0.25:1:0.25", (0.25, 0.5, 0.75, 1.0)),
        ("early=true,false", (True, False)),
        ("early=true,1", (True, 1)),
        ("pieces=4,4,1:4", (4, 1, 2, 3)),
        ("cuts.compute=[3/8, 3/8, 1/4],2", (["3/8", "3/8", "1/4"], 2)),
        ("name='1:30',x", ("1:30", "x")),
        ("schedule.sums.pieces = 1, 2", (1, 2)),
    ],
)
def test_a_word_becomes_values(word: str, values: tuple[Any, ...]) -> None:
    found = parse_axis(word).values
    assert found == values
    assert [type(each) for each in found] == [type(each) for each in values]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("pieces", "an axis is written name=values"),
        ("=1", "an axis is written name=values"),
        ("pieces=", "axis 'pieces' has no values"),
        ("pieces=8:4", "8:4 is empty, for 8 is above 4"),
        ("pieces=1,,2", "nothing between two commas"),
        ("pieces=1:", "'1:' is no range"),
        ("pieces=1:8:0", "never ends: its step"),
        ("pieces=1:8:x1", "never ends: it starts above 0 and grows"),
        ("pieces=0:8:x2", "never ends: it starts above 0"),
        ("pieces=1:9999999", "more than 100000 values"),
        ("pieces=" + "1" * 5000, "a number of 5000 digits is too large"),
        ("pieces=[1/4, 3/4", "a list begins and ends with a bracket"),
        ("pieces=2,1/4]", "a list begins and ends with a bracket"),
    ],
)
def test_what_is_no_axis_is_refused(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_axis(word)


def test_a_call_gives_lists_ranges_or_words() -> None:
    axes = axes_of({"a": range(1, 4), "b": np.array([1, 2]), "c": "1:2", "d": [[0.5, 0.5], 2]})
    assert [each.values for each in axes] == [(1, 2, 3), (1, 2), (1, 2), ([0.5, 0.5], 2)]
    assert type(axes[1].values[0]) is int


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "at least one axis"),
        ({"pieces": []}, "has no values"),
        ({"pieces": 4}, "expected a list of values"),
        ({"sums.pieces": [1], "schedule.sums.pieces": [2]}, "two axes 'sums.pieces'"),
    ],
)
def test_axes_of_a_call_are_looked_at(axes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        axes_of(axes)
