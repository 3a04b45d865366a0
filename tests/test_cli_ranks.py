"""The command line on specs of many ranks and several entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphc.cli.guard import guarded

KERNELS = Path(__file__).parent / "spec" / "kernels"
SPEC = """\
graphc: 1
name: sum
params:
  ranks: {default: 3, min: 1, max: 64}
  rows: {default: 4}
  is_apart: {default: true}
  pieces: {default: 1}
ranks: {count: ranks}
devices: {ranks: rank}
buffers:
  x: {dtype: f32, shape: [rows, 8], role: input}
  sums: {dtype: f32, shape: [ranks, 8], symmetric: true, role: state}
  all: {dtype: f32, shape: [ranks * rows, 8], symmetric: true, role: state}
  words: {dtype: u32, shape: [4], role: status}
  y: {dtype: f32, shape: [ranks, 8], role: output}
entries:
  step: {groups: "=['move'] if is_apart else ['prepare', 'move']", after: [prepare]}
  prepare: {groups: [prepare], if: is_apart}
groups:
  prepare:
    - {name: give, kernel: give, args: {x: x, y: {peers: sums, row: rank}}}
  move:
    - name: spread
      kernel: spread
      args: {x: x, y: {peers: all}, status: words}
      scalars: {rank: rank}
    - {name: fetch, kernel: fetch, args: {x: {peers: sums}, y: y}}
schedule: {spread: {pieces: pieces}}
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def spec(tmp_path: Path) -> list[str]:
    path = tmp_path / "sum.yaml"
    path.write_text(SPEC)
    return [str(path), "--kernels", str(KERNELS)]


def facts(command: list[str], capsys: Capture, *, code: int = 0) -> dict[str, object]:
    assert guarded([*command, "--json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def run(spec: list[str], *words: str) -> list[str]:
    return ["run", *spec, "--backend", "reference", *words]


def test_a_run_launches_what_comes_before_the_first_entry(spec: list[str], capsys: Capture) -> None:
    found = facts(run(spec, "--repeats", "2"), capsys)
    assert found["entries"] == ["prepare", "step"]
    assert found["ops"] == 9
    together = facts(run(spec, "--set", "is_apart=false"), capsys)
    assert together["entries"] == ["step"]
    assert together["outputs"] == found["outputs"]
    assert guarded(run(spec)) == 0
    assert "9 ops, 1 replay of prepare, step" in capsys.readouterr().out


def test_entries_are_launched_as_they_are_named(spec: list[str], capsys: Capture) -> None:
    found = facts(run(spec, "--entry", "prepare"), capsys)
    assert found["entries"] == ["prepare"]
    again = facts(run(spec, *("--entry", "prepare") * 2, *("--entry", "step") * 2), capsys)
    assert again["entries"] == ["prepare", "prepare", "step", "step"]
    assert again["outputs"] == facts(run(spec), capsys)["outputs"]
    assert guarded(run(spec, "--entry", "stop")) == 2
    assert "no entry 'stop': did you mean 'step'?" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_schedules_of_many_ranks_are_compared_bit_for_bit(
    spec: list[str], capsys: Capture, ranks: int
) -> None:
    found = facts(run(spec, "--set", f"ranks={ranks}", "--compare", "pieces=3,units=rank"), capsys)
    assert found["compare"][0]["equal"]  # type: ignore[index]
    assert len([name for name in found["outputs"] if name.endswith("/y")]) == ranks  # type: ignore[attr-defined]


def test_what_a_kernel_leaves_is_a_usage_error(spec: list[str], capsys: Capture) -> None:
    found = facts(run(spec, "--set", "rows=8"), capsys, code=2)
    assert found["error"]["message"] == "op 'rank.0/spread': row 7 has no place"  # type: ignore[index]


def test_check_counts_each_proof_once(spec: list[str], capsys: Capture) -> None:
    found = facts(["check", *spec], capsys)
    schedules = found["schedules"]
    assert [each["entry"] for each in schedules] == ["step", "prepare"]  # type: ignore[attr-defined]
    assert guarded(["check", *spec]) == 0
    said = capsys.readouterr().out
    assert "no race in 2 schedules (entries step, prepare): 9 ops" in said
    assert f"{schedules[0]['pairs']} pairs" in said  # type: ignore[index]


def test_every_entry_is_shown(spec: list[str], capsys: Capture, tmp_path: Path) -> None:
    assert guarded(["show", *spec, "--stage", "program"]) == 0
    said = capsys.readouterr().out
    step, prepare = said.split("=== no transfers, entry prepare")
    assert "rank.2/fetch" in step
    assert "rank.2/give" in prepare
    plan = str(tmp_path / "sum.graphc")
    assert guarded(["compile", *spec, "-o", plan, "--no-cubins"]) == 0
    said = capsys.readouterr().out
    assert "step: 6 ops" in said
    assert "prepare: 3 ops" in said
    assert "on each of gpu0 to gpu2" in said
    assert guarded(["run", plan, "--backend", "reference", "--entry", "prepare"]) == 0
    assert guarded(["compile", *spec, "--dump-after", "infer_dependencies"]) == 0
    assert "=== no transfers, entry prepare" in capsys.readouterr().out


def test_one_entry_is_shown(spec: list[str], capsys: Capture, tmp_path: Path) -> None:
    plan = str(tmp_path / "sum.graphc")
    assert guarded(["compile", *spec, "-o", plan, "--no-cubins", "--json"]) == 0
    capsys.readouterr()
    for file in (spec, [plan]):
        (found,) = shown([*file, "--entry", "prepare", "--stage", "all", "--resources"], capsys)
        assert found["title"] == "no transfers, entry prepare"
        assert found["resources"]["this"]["ops"] == 3
        for stage in ("program", "graph", "schedule"):
            assert "rank.2/give" in found["stages"][stage]
            assert "rank.2/fetch" not in found["stages"][stage]
        assert [each["entry"] for each in shown(file, capsys)] == ["step", "prepare"]
    (cut,) = shown([*spec, "--set=pieces=2", "--entry=step", "--resources"], capsys)
    assert cut["resources"]["this"]["ops"] == 9
    assert cut["resources"]["one_piece"]["ops"] == 6


def test_one_entry_is_drawn(spec: list[str], capsys: Capture, tmp_path: Path) -> None:
    svg, html = tmp_path / "sum.svg", tmp_path / "sum.html"
    pictures = ["--svg", str(svg), "--html", str(html)]
    assert guarded(["show", *spec, *pictures, "--entry", "prepare"]) == 0
    for each in (svg, html):
        assert "entry prepare" in each.read_text()
        assert "rank.2/give" in each.read_text()
        assert "rank.2/fetch" not in each.read_text()
    assert capsys.readouterr().err == f"wrote {svg}\nwrote {html}\n"


def test_an_entry_that_is_not_there_is_refused(spec: list[str], capsys: Capture) -> None:
    for command in (["show"], ["simulate", "--machine=h200x2", "--set=ranks=2"]):
        for entry, why in (("stepp", "did you mean 'step'?"), ("x", "there are step, prepare")):
            assert guarded([*command, *spec, "--entry", entry]) == 2
            said = capsys.readouterr()
            assert said.err == f"error[usage]: the plan has no entry '{entry}': {why}\n"
            assert said.out == ""
    assert guarded(["show", "hand/peer_whole", "--entry", "prepare"]) == 2
    assert "there are step" in capsys.readouterr().err


def shown(words: list[str], capsys: Capture) -> list[dict[str, Any]]:
    variants: list[dict[str, Any]] = facts(["show", *words], capsys)["variants"]  # type: ignore[assignment]
    return variants
