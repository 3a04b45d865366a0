"""Searches: what they ask for follows from the seed and the rows alone."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from sweep_cases import OFFLOAD

from graphc.sweeps.axes import axes_of
from graphc.sweeps.job import Job
from graphc.sweeps.rows import Basis, Candidate, Outcome, Row, Status
from graphc.sweeps.search import NEEDS, SAMPLERS, chunks
from graphc.sweeps.space import Space
from graphc.text.diagnostics import UsageError

SPACE = Space(Job(str(OFFLOAD), ""), axes_of({"route": ["host", "p2p"], "pieces": "1:64"}))


def judged(each: Candidate) -> Row:
    pieces = each.values["pieces"]
    assert isinstance(pieces, int)
    us = (pieces - 20) ** 2 + 5.0 * (each.values.get("route") == "host")
    return Row(each, Outcome(Status.OK, Basis.PREDICTED, us=us, relative=us))


def searched(sampler: str, trials: int, seed: int, known: Any = (), space: Space = SPACE) -> Any:
    rows: dict[str, Row] = {}
    found = []
    before = {each.key: judged(each) for each in known}
    for batch in chunks(space, sampler, trials, seed, rows):
        for each in batch:
            rows[each.key] = before.get(each.key) or judged(each)
            found.append(each)
    return found


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsgaii"])
def test_a_search_repeats_nothing_and_is_the_same_by_seed(sampler: str) -> None:
    found = searched(sampler, 24, 3)
    assert len(found) == 24
    assert len({each.key for each in found}) == 24
    assert searched(sampler, 24, 3) == found
    assert searched(sampler, 24, 4) != found


def test_a_search_with_rows_of_before_asks_for_the_same() -> None:
    found = searched("tpe", 30, 1)
    assert searched("tpe", 30, 1, known=found[:17]) == found


def test_a_longer_search_begins_with_a_shorter_one() -> None:
    assert searched("tpe", 30, 1)[:12] == searched("tpe", 12, 1)


def test_a_guided_search_comes_nearer_than_chance() -> None:
    tried = searched("tpe", 60, 1)
    late = [each.values["pieces"] for each in tried[40:]]
    assert sum(abs(each - 20) <= 12 for each in late) > len(late) / 2


def test_a_search_of_a_small_space_ends() -> None:
    few = Space(SPACE.job, axes_of({"pieces": "1:5"}))
    assert {each.values["pieces"] for each in searched("random", 100, 0, space=few)} == {
        1, 2, 3, 4, 5,
    }  # fmt: skip


def test_a_search_keeps_to_the_conditions() -> None:
    space = Space(SPACE.job, SPACE.axes, ("pieces % 8 == 0",))
    found = searched("tpe", 10, 0, space=space)
    assert found
    assert all(each.values["pieces"] % 8 == 0 for each in found)


def test_conditions_that_nothing_fits_end_a_search() -> None:
    space = Space(SPACE.job, SPACE.axes, ("pieces > 64",))
    with pytest.raises(UsageError, match="no candidate is left"):
        searched("random", 10, 0, space=space)


def test_candidates_that_failed_do_not_stop_a_search() -> None:
    rows: dict[str, Row] = {}
    for batch in chunks(SPACE, "tpe", 20, 0, rows):
        for each in batch:
            rows[each.key] = Row(each, Outcome(Status.FAILED, Basis.PREDICTED, "told so"))
    assert len(rows) == 20


def test_an_unknown_sampler_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"no sampler 'tep': did you mean 'tpe'\?"):
        searched("tep", 1, 0)
    with pytest.raises(UsageError, match="at least one candidate, not 0"):
        searched("tpe", 0, 0)


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_every_sampler_is_there_or_says_what_it_needs(sampler: str) -> None:
    if any(find_spec(each) is None for each in NEEDS.get(sampler, ())):
        with pytest.raises(UsageError, match="needs a package that is not installed"):
            searched(sampler, 14, 0)
    else:
        assert searched(sampler, 14, 0)
