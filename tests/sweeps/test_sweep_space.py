"""The candidates: all points of the axes, less what conditions leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweep_cases import OFFLOAD

from graphc.sweeps.axes import axes_of
from graphc.sweeps.job import Job
from graphc.sweeps.space import Space, check_names
from graphc.text.diagnostics import SpecError, UsageError


def space(axes: dict[str, Any], *where: str, path: Path = OFFLOAD, **fixed: Any) -> Space:
    return Space(Job(str(path), "", fixed), axes_of(axes), where)


def test_a_grid_has_all_points_the_last_axis_fastest() -> None:
    found = space({"route": ["host", "p2p"], "pieces": "1:3"}).grid(None, 0)
    assert [each.label for each in found] == [
        "route=host pieces=1", "route=host pieces=2", "route=host pieces=3",
        "route=p2p pieces=1", "route=p2p pieces=2", "route=p2p pieces=3",
    ]  # fmt: skip
    assert [each.index for each in found] == list(range(6))


def test_conditions_know_params_axes_and_what_is_fixed() -> None:
    axes = {"pieces": "1:4", "schedule.back.pieces": "1:4"}
    found = space(axes, "pieces >= back.pieces", "tokens // pieces >= 32", tokens=96).grid(None, 0)
    assert [tuple(each.values.values()) for each in found] == [
        (1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3),
    ]  # fmt: skip


def test_a_condition_with_an_unknown_name_is_refused() -> None:
    with pytest.raises(SpecError, match="peices"):
        space({"pieces": "1:4"}, "peices > 2").grid(None, 0)


def test_a_condition_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no candidate is left: none of 4"):
        space({"pieces": "1:4"}, "pieces > 4").grid(None, 0)


def test_some_of_a_grid_follow_from_the_seed_and_more_of_them_hold_the_first() -> None:
    grid = space({"pieces": "1:50", "route": ["host", "p2p"]})
    few, same, more, other = (grid.grid(n, seed) for n, seed in ((9, 1), (9, 1), (20, 1), (9, 2)))
    assert few == same
    assert few != other
    assert len(few) == 9
    assert {each.key for each in few} < {each.key for each in more}
    assert [each.index for each in more] == sorted(each.index for each in more)


def test_a_grid_beyond_reason_is_refused() -> None:
    with pytest.raises(UsageError, match="span 2,000,000 candidates"):
        space({"pieces": "1:2000", "tokens": "1:1000"}).grid(None, 0)


@pytest.mark.parametrize(
    "name",
    ["pieces", "emit", "units", "memory", "max_streams", "over.pieces", "schedule.over.route"],
)
def test_params_and_values_of_the_schedule_are_axes(name: str) -> None:
    wanted = space({name: [1]})
    check_names(wanted.job, wanted.axes)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("peices", "did you mean 'pieces'?"),
        ("schedule.ovr.pieces", "did you mean 'over.pieces'?"),
        ("over.peices", "'over' has no 'peices': did you mean 'pieces'?"),
        ("emits", "did you mean 'emit'?"),
        ("zzzz", "the params are tokens, hidden, route, pieces"),
        ("cuts.nothing", "is no param of 'offload'"),
    ],
)
def test_an_axis_that_is_no_param_is_refused_with_a_hint(name: str, hint: str) -> None:
    wanted = space({name: [1]})
    with pytest.raises(UsageError) as caught:
        check_names(wanted.job, wanted.axes)
    assert hint in str(caught.value)


def test_ops_of_groups_are_axes() -> None:
    path = Path(__file__).parents[2] / "specs" / "ep_throughput.yaml"
    wanted = space({"dispatch.pieces": [1, 2]}, path=path)
    check_names(wanted.job, wanted.axes)
    wrong = space({"dispatch.peices": [1, 2]}, path=path)
    with pytest.raises(UsageError, match="'dispatch' has no 'peices'"):
        check_names(wrong.job, wrong.axes)


def test_ops_of_repeats_and_of_used_files_are_axes(tmp_path: Path) -> None:
    (tmp_path / "block.yaml").write_text(
        "graphc_ops: 1\nname: block\nargs: [x, y]\nops:\n"
        "  - {name: down, kernel: convert, device: gpu, args: {x: x, y: y}}\n"
    )
    path = tmp_path / "spec.yaml"
    path.write_text(
        "graphc: 1\nname: uses\ndevices: [gpu]\nbuffers:\n"
        "  x: {device: gpu, dtype: f32, shape: [8, 4], role: input}\n"
        "  y: {device: gpu, dtype: f16, shape: [8, 4], role: output}\n"
        "ops:\n  - repeat: 1\n    index: layer\n    body:\n"
        "      - {name: round, use: block.yaml, args: {x: x, y: y}}\n"
    )
    wanted = space({"round/down.pieces": [1, 2]}, path=path)
    check_names(wanted.job, wanted.axes)
