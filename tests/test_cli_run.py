"""``graphc run`` and ``graphc show`` on what a stand-in for the compiler and its backend give."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from all_to_all import layer

from graphc.backends.cuda.timing import OpTime
from graphc.cli.guard import guarded
from graphc.ir import (
    Access,
    Allocation,
    Buffer,
    Fill,
    LaunchContract,
    Memory,
    Mode,
    Op,
    Program,
    Role,
    Run,
    Schedule,
    Slot,
    Stream,
)
from graphc.plan import Plan, Proof, Variant
from graphc.regions import Region


def tiny_schedule() -> Schedule:
    buffer = Buffer("y", "g0", "f32", (4, 2), per_count=1, role=Role.INOUT)
    op = Op("zero", "zero", "g0", Fill(0), (Access("target", Region("y", 0, 32), Mode.WRITE),))
    return Schedule(
        Program("tiny", ("g0",), {"y": buffer}, (op,), 4, 4, "tokens"),
        (Stream("g0.0", "g0"),),
        "g0.0",
        (Run("g0.0", "zero"),),
        (),
        Memory((Allocation("y", "g0", 32),), {"y": Slot("y", 0)}),
    )


def tiny_plan(values: dict[str, Any]) -> Plan:
    variant = Variant({"move": "p2p"}, (), tiny_schedule(), {}, Proof(1, 0, 32))
    return Plan("tiny", values, (variant,), {})


class FakeGraph:
    """Adds the plan's param ``wrong`` to the last element in use."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.variant = plan, plan.variants[0]
        self.program = self.variant.schedule.program
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.is_closed = False

    def bind(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        self.arrays.update(arrays)

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self.variant.schedules)

    def launch(
        self, stream: object = None, count: int | None = None, entry: str | None = None
    ) -> None:
        self.arrays["y"][2, 1] += np.float32(self.plan.params.get("wrong", 0))

    def synchronize(self) -> None:
        pass

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.arrays[name]

    def time_ops(self, count: int | None = None) -> list[OpTime]:
        return [OpTime("zero", "g0.0", 12.5, 3.25)]

    def time_replays(self, rounds: int, count: int | None = None) -> list[float]:
        return [40.0] * rounds

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A spec that the stand-in compiles, whatever is in it."""
    import graphc

    graphs: list[FakeGraph] = []

    def compile(path: Path, **options: Any) -> Plan:
        known = ("preset", "schedule", "kernels", "routes", "observe", "cubins", "arch", "origin")
        return tiny_plan({name: each for name, each in options.items() if name not in known})

    def instantiate(plan: Plan, backend: str) -> FakeGraph:
        graphs.append(FakeGraph(plan))
        return graphs[-1]

    stub = ModuleType("graphc.api")
    stub.compile, stub.instantiate, stub.graphs = compile, instantiate, graphs  # type: ignore[attr-defined]
    stub.has_gpu = lambda: True  # type: ignore[attr-defined]
    pipeline = ModuleType("graphc.pipeline")
    pipeline.ignore = lambda name, stage: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "graphc.api", stub)
    monkeypatch.setitem(sys.modules, "graphc.pipeline", pipeline)
    monkeypatch.setattr(graphc, "api", stub, raising=False)
    path = tmp_path / "spec.yaml"
    path.write_text("graphc: 1\n")
    return str(path)


Capture = pytest.CaptureFixture[str]


def test_equal_bits_end_with_0(spec: str, capsys: Capture) -> None:
    assert guarded(["run", spec, "--set", "pieces=3", "--compare", "pieces=1"]) == 0
    out = capsys.readouterr().out
    assert "tiny: route p2p on cuda, 1 op, 1 replay" in out
    assert "the same bits as with pieces=1" in out


def test_different_bits_end_with_1_and_say_where(spec: str, capsys: Capture) -> None:
    words = ["run", spec, "--compare", "wrong=1", "--compare", "wrong=0", "--json"]
    assert guarded(words) == 1
    out, _ = capsys.readouterr()
    found = json.loads(out)
    assert not found["ok"]
    first, second = found["compare"]
    assert second["equal"]
    (difference,) = first["differences"]
    assert difference["name"] == "y"
    assert (difference["elements"], difference["different"]) == (8, 1)
    assert difference["index"] == [2, 1]
    assert difference["other"] == pytest.approx(difference["this"] + 1, rel=1e-6)


def test_a_difference_is_told_in_words_on_stderr(spec: str, capsys: Capture) -> None:
    assert guarded(["run", spec, "--compare", "wrong=1"]) == 1
    assert "'y' differs in 1 of 8 elements, first at [2, 1]" in capsys.readouterr().err


def test_rows_that_are_not_in_use_are_not_compared(spec: str, capsys: Capture) -> None:
    assert guarded(["run", spec, "--count", "2", "--compare", "wrong=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["y"]["shape"] == [2, 2]


def test_every_graph_is_closed(spec: str) -> None:
    assert guarded(["run", spec, "--compare", "pieces=1"]) == 0
    graphs = sys.modules["graphc.api"].graphs  # type: ignore[attr-defined]
    assert [each.is_closed for each in graphs] == [True, True]


def test_a_count_above_the_capacity_is_refused_before_anything_runs(
    spec: str, capsys: Capture
) -> None:
    assert guarded(["run", spec, "--count", "5"]) == 2
    assert "count 5 is outside 0 to 4" in capsys.readouterr().err
    assert not sys.modules["graphc.api"].graphs  # type: ignore[attr-defined]


def test_times_are_told_by_step_with_the_wait_before(spec: str, capsys: Capture) -> None:
    assert guarded(["run", spec, "--repeats", "3", "--timings"]) == 0
    out = capsys.readouterr().out
    assert "GPU: 40.0 us (median)" in out
    assert "zero  12.5 us" in out
    assert "3.2 us" in out


def test_inputs_may_come_from_files(spec: str, tmp_path: Path, capsys: Capture) -> None:
    from graphc.bits import digest

    array = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.save(tmp_path / "y.npy", array)
    assert guarded(["run", spec, "--input", f"y={tmp_path / 'y.npy'}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["y"]["digest"] == digest(array)


@pytest.mark.parametrize("word", ["y", "z=y.npy", "y=nowhere.npy"])
def test_a_wrong_input_is_a_usage_error(spec: str, word: str, capsys: Capture) -> None:
    assert guarded(["run", spec, "--input", word]) == 2
    assert "error[usage]" in capsys.readouterr().err


def test_the_picture_is_written_whole(spec: str, tmp_path: Path) -> None:
    target = tmp_path / "a.svg"
    assert guarded(["run", spec, "--svg", str(target)]) == 0
    assert target.read_text().endswith("</svg>\n")
    assert "as long as it took" in target.read_text()
    assert not list(tmp_path.glob("*.partial"))


def test_a_picture_that_cannot_be_written_leaves_nothing(spec: str, capsys: Capture) -> None:
    assert guarded(["run", spec, "--svg", "/nowhere/a.svg"]) == 1
    assert "error[cannot-write]" in capsys.readouterr().err


def test_a_plan_is_recognised_and_takes_no_values(
    spec: str, tmp_path: Path, capsys: Capture
) -> None:
    plan = tmp_path / "tiny.graphc"
    tiny_plan({}).save(plan)
    assert guarded(["run", str(plan), "--set", "pieces=1"]) == 2
    assert "--set needs the spec" in capsys.readouterr().err
    assert guarded(["run", str(plan), "--compare", "pieces=1"]) == 2
    assert "--compare needs the spec" in capsys.readouterr().err


def test_a_saved_plan_is_shown(spec: str, tmp_path: Path, capsys: Capture) -> None:
    from graphc.plan import load_plan

    sys.modules["graphc.api"].load = load_plan  # type: ignore[attr-defined]
    plan = tmp_path / "tiny.graphc"
    tiny_plan({}).save(plan)
    assert guarded(["show", str(plan), "--stage", "all", "--resources", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["variants"]
    assert set(told["stages"]) == {"program", "graph", "schedule", "memory", "kernels"}
    assert told["resources"]["this"]["ops"] == 1


def test_compile_writes_the_plan_and_says_what_is_in_it(
    spec: str, tmp_path: Path, capsys: Capture
) -> None:
    target = tmp_path / "tiny.graphc"
    assert guarded(["compile", spec, "--set", "pieces=3", "-o", str(target)]) == 0
    out = capsys.readouterr().out
    assert f"wrote {target}" in out
    assert "tiny: pieces 3" in out
    assert "route p2p: 1 op, 1 stream, 0 waits; 32 B on g0" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["--dump-after", "infer_dependencis"], "infer_dependencies"), (["-o", "."], "is a folder")],
)
def test_compile_refuses_what_makes_no_sense(
    spec: str, words: list[str], complaint: str, capsys: Capture
) -> None:
    assert guarded(["compile", spec, *words]) == 2
    assert complaint in capsys.readouterr().err


def test_compile_never_writes_over_the_spec(spec: str, capsys: Capture) -> None:
    assert guarded(["compile", spec, "-o", spec]) == 2
    assert Path(spec).read_text() == "graphc: 1\n"


def test_check_says_in_one_line_what_was_proven(spec: str, capsys: Capture) -> None:
    schedule = tiny_schedule()
    stub: Any = sys.modules["graphc.api"]
    stub.check = lambda path, **options: [(schedule, Proof(1, 7, 32))]
    assert guarded(["check", spec]) == 0
    out = capsys.readouterr().out
    assert out == (
        "tiny: no race: 1 op on 1 stream with 0 waits, 7 pairs of conflicting accesses compared "
        "over 32 B\n"
    )


def test_check_counts_what_orders_units(spec: str, capsys: Capture) -> None:
    """Signals are ops; awaits and handshakes are signals awaited, each as often as it is."""
    schedule = layer(3, LaunchContract.JOINED)
    stub: Any = sys.modules["graphc.api"]
    stub.check = lambda path, **options: [(schedule, Proof(1, 7, 32))]
    assert guarded(["check", spec]) == 0
    assert (
        "in 3 units with 9 signals awaited 18 times in their launch and 0 times in the next "
        "(handshakes), 7 pairs"
    ) in capsys.readouterr().out
    assert guarded(["check", spec, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["schedules"]
    counted = {"units": 3, "signals": 9, "awaits": 18, "handshakes": 0}
    assert found.items() >= counted.items()
