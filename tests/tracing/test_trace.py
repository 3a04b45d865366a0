"""graphc.trace and ``graphc trace``: which replay is told, files, predictions, wrong calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import RecordingDriver
from small_plan import KERNELS, small_plan

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.backends.recording import Recording, Replay, Span, Stray, Way
from graphc.cli.guard import guarded
from graphc.tracing.slices import engine_of
from graphc.tracing.traced import trace_of


def recorded(*factors: float, way: Way = Way.EVENTS) -> Recording:
    """Replays of the small plan, one op after the other, each as long as its factor says."""
    ops = small_plan().variants[0].schedule.program
    return Recording(
        way,
        tuple(
            Replay({
                op.name: Span(10 * factor * at, 10 * factor * (at + 1)) for at, op in enumerate(ops)
            })
            for factor in factors
        ),
        {},
    )  # fmt: skip


def test_the_replay_that_is_drawn_is_one_that_happened() -> None:
    plan = small_plan()
    found = trace_of(plan, plan.variants[0], recorded(1.0, 9.0, 2.0))
    assert found.total_us == 300
    assert found.timeline is found.timelines[2]
    assert found.ops[0].us == 20
    assert found.ops[0].predicted_us is None


def test_an_even_number_of_replays_has_one_in_the_middle_too() -> None:
    plan = small_plan()
    found = trace_of(plan, plan.variants[0], recorded(4.0, 1.0, 2.0, 3.0))
    assert found.timeline is found.timelines[2]
    assert found.total_us == 375  # the median, between two of them


def test_predictions_stand_beside_the_ops() -> None:
    plan = small_plan()
    base = trace_of(plan, plan.variants[0], recorded(1.0))
    shorter = tuple(
        replace(each, start_us=each.start_us / 2, stop_us=each.stop_us / 2)
        for each in base.timeline.slices[:-1]
    )
    predicted = replace(base.timeline, slices=shorter)
    found = trace_of(plan, plan.variants[0], recorded(1.0), predicted)
    assert found.ops[0].predicted_us == 5
    assert found.ops[0].error == -0.5
    assert found.ops[-1].predicted_us is None
    assert found.ops[-1].error is None


def test_a_stream_that_is_busy_does_not_wait() -> None:
    """send/piece.1 follows piece.0 on its stream, affine/piece.0 begins the peer's."""
    plan = small_plan()
    found = trace_of(plan, plan.variants[0], recorded(1.0)).timeline
    slices = {each.op: each for each in found.slices}
    assert slices["send/piece.0"].ready_us == 0
    assert slices["affine/piece.0"].waited_us == slices["affine/piece.0"].start_us
    assert slices["affine/piece.0"].waited_for == ("send/piece.0",)
    assert slices["affine/piece.0"].engine == "sm"
    assert slices["send/piece.0"].engine == "copy to host"
    assert slices["back/piece.0"].engine == "copy to host"


def test_copies_are_told_by_where_they_lead() -> None:
    plan = small_plan(p2p=True)
    program = plan.variants[0].schedule.program
    places = {buffer.name: buffer.device for buffer in program.buffers.values()}
    engines = {op.step: engine_of(op, places) for op in program}
    assert engines["back"] == "copy to peer"
    assert engine_of(replace(program.ops[0], device="host"), places) == "host"


def test_on_the_host_nothing_waits() -> None:
    plan = small_plan()
    found = trace_of(plan, plan.variants[0], recorded(1.0, way=Way.WALL))
    assert all(each.waited_us == 0 for each in found.timeline.slices)


def test_a_plan_is_traced_on_the_reference_with_inputs_of_its_own() -> None:
    plan = graphc.compile("moe_peer", preset="small", route="host", cubins=False, arch="sm_90a")
    found = graphc.trace(plan, rounds=2, backend="reference")
    assert found.recording.way is Way.WALL
    assert [each.phase for each in found.phases] == [*plan.phases]
    assert found.missing == ()
    ops = {op.name for op in plan.variants[0].schedule.program}
    assert {each.op for each in found.ops} == ops


def test_a_graph_is_traced_as_it_is_bound() -> None:
    with CudaGraph(small_plan(), driver=RecordingDriver(kernels=KERNELS)) as graph:
        found = graphc.trace(graph, rounds=2, by="events", count=4)
        assert found.recording.way is Way.EVENTS
        assert not graph.is_closed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graphc.trace("moe_peer"), "expected a plan, or a graph of one"),
        (lambda: graphc.trace(small_plan(), by="event"), "did you mean 'events'"),
        (lambda: graphc.trace(small_plan(), by="wall"), "there are cupti, events"),
    ],
)
def test_wrong_calls_say_what_is_expected(call: Any, message: str) -> None:
    with pytest.raises(graphc.UsageError, match=message):
        call()


SMALL = ("trace", "moe_peer", "--preset", "small", "--set", "route=host", "--rounds", "2")


def test_the_command_tells_phases(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded([*SMALL]) == 0
    out = capsys.readouterr().out
    assert "the references on the host" in out
    assert "combine" in out
    assert "waited" in out


def test_the_command_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded([*SMALL, "--machine", "h200x2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["by"] == "wall"
    assert len(told["replays_us"]) == 2
    assert {each["phase"] for each in told["phases"]} >= {"combine", "peer", "results"}
    kernels = [each for each in told["ops"] if each["engine"] == "sm"]
    assert all(each["predicted_us"] > 0 for each in kernels)
    assert told["strays"] == []


def test_files_are_written_where_they_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded([*SMALL, "--out", str(tmp_path / "one.json")]) == 0
    assert json.loads((tmp_path / "one.json").read_text())["traceEvents"]
    folder = tmp_path / "made" / "here"
    assert guarded([*SMALL, "--out", str(folder), "--html", str(tmp_path / "page.html")]) == 0
    assert {each.name for each in folder.iterdir()} == {"trace.json", "phases.json", "ops.jsonl"}
    rows = [json.loads(line) for line in (folder / "ops.jsonl").read_text().splitlines()]
    assert rows[0]["op"] == "layer.0/mix/piece.0"
    assert "layer.0/mix/piece.0" in (tmp_path / "page.html").read_text()
    told = capsys.readouterr()
    assert f"wrote {folder}" in told.err


def test_records_without_an_op_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from graphc.backends.reference import ReferenceGraph

    record = ReferenceGraph.record

    def with_stray(self: Any, *args: Any, **options: Any) -> Recording:
        found = record(self, *args, **options)
        strays = tuple(Stray(f"kernel k{at}", "it names no node", 0, 1.0, 2.0) for at in range(7))
        replays = tuple(replace(each, strays=strays) for each in found.replays)
        return replace(found, replays=replays, missing=("layer.0/add/piece.0",))

    monkeypatch.setattr(ReferenceGraph, "record", with_stray)
    assert guarded([*SMALL]) == 0
    out = capsys.readouterr().out
    assert "nothing was seen of 1 ops: layer.0/add/piece.0" in out
    assert "7 records of the replay belong to no op:" in out
    assert "kernel k0 on GPU 0, at 1.0 us: it names no node" in out
    assert "... and 2 more" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--by", "cuptii"], "did you mean 'cupti'"),
        (["--machine", "no_such_machine"], "no_such_machine"),
        (["--by", "cupti"], "to trace by cupti needs GPUs"),
        (["--count", "99999"], "99999"),
    ],
)
def test_wrong_options_are_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded([*SMALL, *words]) in (1, 2)
    assert message in capsys.readouterr().err


def test_places_that_cannot_be_written_are_named_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    for out, message in (("file", "is a file: name a folder"), ("folder.json", "is a folder")):
        assert guarded([*SMALL, "--out", str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err
    assert guarded([*SMALL, "--out", str(tmp_path / "file" / "below")]) == 2
    assert "cannot make the folder" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "name"), [("--out", "trace.json"), ("--html", "trace.html")])
def test_files_in_folders_that_are_not_there_are_named_before_anything_runs(
    option: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--out", str(tmp_path / "out.json"), option, str(tmp_path / "none" / name)]
    assert guarded([*SMALL, *words]) == 1
    assert f"there is no folder '{tmp_path / 'none'}'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
