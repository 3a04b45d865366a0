"""What the calls of the library take, and what they say of the rest."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphc
from graphc import api, pipeline
from graphc.passes.assign_streams import assign_streams
from graphc.text.diagnostics import CompilerBug, SpecError, UsageError
from graphc.text.diagnostics import error as spec_error

SPEC = """
graphc: 1
name: small
params:
  tokens: {default: 8, min: 0, count: true}
  eps: {default: 0.5}
  wide: {default: false}
  route: {default: host_copy}
devices: [one, two]
buffers:
  x: {device: one, dtype: f32, shape: [tokens, 8], role: input}
  y: {device: two, dtype: f32, shape: [tokens, 8], role: output}
ops:
  - {name: over, transfer: {source: x, target: y, wire: f32}}
schedule:
  over: {route: =route}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


def compiled(spec: Path, **values: Any) -> graphc.Plan:
    return graphc.compile(spec, cubins=False, arch=values.pop("arch", "sm_90a"), **values)


class Word(StrEnum):
    ROUTE = "host"


# Values.


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint32, np.array])
def test_whole_numbers_of_numpy_are_whole_numbers(spec: Path, kind: Any) -> None:
    plan = compiled(spec, tokens=kind(5), **{"schedule.over.pieces": kind(2)})
    assert plan.params["tokens"] == 5
    assert type(plan.params["tokens"]) is int
    assert len({op.piece.index for op in plan.variants[0].schedule.program}) == 2


def test_other_values_of_numpy_are_pythons_own(spec: Path) -> None:
    plan = compiled(spec, eps=np.float32(0.25), wide=np.bool_(True), route=Word.ROUTE)
    assert plan.params["eps"] == 0.25
    assert plan.params["wide"] is True
    assert plan.params["route"] == "host"
    assert {type(each) for each in plan.params.values()} == {int, float, bool, str}
    assert compiled(spec, eps=np.int64(2)).params["eps"] == 2.0
    shares = {"schedule.over.pieces": np.array([0.25, 0.75])}
    assert len(compiled(spec, **shares).variants[0].schedule.program.ops) == 4
    plan.save(spec.with_suffix(".graphc"))
    assert graphc.load(spec.with_suffix(".graphc")) == plan


def test_a_saved_plan_of_numpys_values_is_that_of_pythons(spec: Path) -> None:
    assert compiled(spec, tokens=np.int64(5)) == compiled(spec, tokens=5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("inf")])
def test_values_are_finite(spec: Path, value: float) -> None:
    with pytest.raises(UsageError, match="finite numbers"):
        compiled(spec, eps=value)


@pytest.mark.parametrize("call", [graphc.compile, graphc.check])
def test_a_wrong_value_is_shown_where_it_came_from(spec: Path, call: Any) -> None:
    for values, place in (
        ({"tokens": 0.5}, "value of 'tokens'"),
        ({"tokens": -1}, "value of 'tokens'"),
        ({"tokens": np.float32(4)}, "value of 'tokens'"),
        ({"tokns": 4}, "value of 'tokns'"),
        ({"schedule.over.route": "hots"}, "value of 'schedule.over.route'"),
    ):
        with pytest.raises(SpecError) as caught:
            call(spec, **values)
        assert f"{place}: error[" in str(caught.value)
        assert "--set" not in str(caught.value)
    with pytest.raises(SpecError, match="--set tokens=-1: error"):
        call(spec, origin="--set {name}={value}", tokens=-1)


@pytest.mark.parametrize("arch", ["", "hopper", 90, "sm_", "compute_90"])
def test_an_architecture_has_its_name(spec: Path, arch: Any) -> None:
    with pytest.raises(UsageError, match="arch: expected an architecture such as 'sm_90a'"):
        compiled(spec, arch=arch)


# Folders.


@pytest.mark.parametrize("what", ["kernels", "routes"])
@pytest.mark.parametrize("call", [graphc.compile, graphc.check])
def test_a_folder_that_is_missing_is_named(spec: Path, what: str, call: Any) -> None:
    for given in ("nowhere", ["nowhere"], Path("nowhere"), (str(spec.parent), "nowhere")):
        with pytest.raises(UsageError, match=f"{what}: there is no folder 'nowhere'"):
            call(spec, **{what: given})
    with pytest.raises(UsageError, match=f"{what}: there is no folder '.*small.yaml'"):
        call(spec, **{what: [spec]})
    with pytest.raises(UsageError, match=f"{what}: expected the path of a folder, found 3"):
        call(spec, **{what: [3]})


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_one_folder(spec: Path, tmp_path: Path, kind: Any) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    assert api.folders("kernels", kind(folder)) == (folder,)
    assert api.folders("kernels", [kind(folder)] * 2) == (folder, folder)
    assert compiled(spec, kernels=kind(folder), routes=kind(folder)).name == "small"


# Bugs.


def assign_nothing(graph: Any, max_streams: int) -> Any:
    raise KeyError("over")


def assign_on_one_stream(graph: Any, max_streams: int) -> Any:
    raise CompilerBug("assign_streams", "op 'over' is on no stream")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (assign_nothing, "assign_nothing: KeyError: 'over'"),
        (assign_on_one_stream, "assign_streams: op 'over' is on no stream"),
    ],
)
def test_a_broken_pass_is_named_and_its_stage_written(
    spec: Path, monkeypatch: pytest.MonkeyPatch, broken: Any, message: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(spec.parent))
    monkeypatch.setattr(pipeline, "assign_streams", broken)
    for call in (graphc.compile, graphc.check):
        with pytest.raises(CompilerBug) as caught:
            call(spec)
        assert message in str(caught.value)
        assert caught.value.dump is not None
        assert f"the stage was written to {caught.value.dump}" in str(caught.value)
        assert "over/" in Path(caught.value.dump).read_text()


def test_a_schedule_that_does_not_hold_is_dumped(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(placed: Any, memory: Any, emit: Any) -> Any:
        from dataclasses import replace

        from graphc.passes.insert_events import insert_events

        found = insert_events(placed, memory, emit)
        kept = tuple(each for each in found.instructions if each.kind != "wait")
        return replace(found, instructions=kept)

    monkeypatch.setattr("tempfile.tempdir", str(spec.parent))
    monkeypatch.setattr(pipeline, "insert_events", forgetful)
    with pytest.raises(CompilerBug) as caught:
        graphc.check(spec)
    assert caught.value.pass_name == "verify"
    assert "run" in Path(str(caught.value.dump)).read_text()


def test_a_bug_is_told_where_nothing_can_be_written(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(spec.parent / "nowhere"))
    monkeypatch.setattr(pipeline, "assign_streams", assign_nothing)
    with pytest.raises(CompilerBug, match="KeyError: 'over'") as caught:
        graphc.check(spec)
    assert caught.value.dump is None


def test_mistakes_of_authors_pass_through(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: Any, max_streams: int) -> Any:
        raise spec_error("bad-stream", "no such stream")

    monkeypatch.setattr(pipeline, "assign_streams", refuse)
    with pytest.raises(SpecError, match="no such stream"):
        graphc.check(spec)


def test_observers_hear_of_every_pass_by_its_name(spec: Path) -> None:
    heard: list[str] = []
    graphc.check(spec, observe=lambda name, stage: heard.append(name))
    assert heard == [
        "choose_routes",
        "lower_routes",
        "split_pieces",
        "infer_dependencies",
        "plan_memory",
        assign_streams.__name__,
        "insert_events",
        "verify",
    ]
