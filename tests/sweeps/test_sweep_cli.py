"""``graphc sweep``: the command, its table, its JSON, its exit codes and its messages."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import MACHINE, OFFLOAD, extern_spec

from graphc.cli import sweep as command
from graphc.cli.guard import guarded
from graphc.sweeps.rows import Basis, Candidate, Outcome, Row, Status
from graphc.sweeps.sweep import Standing
from graphc.text.write import cannot_write

ROOT = Path(__file__).parent.parent.parent
SIMULATED = ("--simulate", MACHINE, "--workers", "0", "--set", "route=host")


def ran(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    code = guarded(["sweep", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_of_the_page_prints_candidates_and_the_best(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = ran(
        capsys, "specs/moe_peer.yaml", "--simulate", "specs/machines/h200x2.yaml",
        "--axis", "route=host,host_push,p2p", "--axis", "pieces=1:4", "--out", tmp_path, "--json",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert isinstance(found["candidates"], list)
    assert len(found["candidates"]) == 12
    assert found["best"] in found["candidates"]
    assert found["best"]["us"] == min(each["us"] for each in found["candidates"])
    assert {each.name for each in tmp_path.iterdir()} >= {"rows.jsonl", "best.yaml"}


def test_the_table_has_the_best_first_and_the_baseline_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = ran(
        capsys, OFFLOAD, *SIMULATED, "--axis", "pieces=1:20,0", "--axis", "emit=capture",
        "--out", tmp_path,
    )  # fmt: skip
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "offload: 21 candidates, 1 of them not ok"
    assert lines[1].split() == ["pieces", "emit", "predicted", "of", "the", "baseline"]
    times = [float(line.split()[2]) for line in lines[2:12]]
    assert times == sorted(times)
    assert lines[12].endswith("the baseline")
    assert lines[13].startswith("1 candidate refused: bad-value: 'pieces' is 0, but must be at")
    assert lines[14] == f"wrote {tmp_path}/best.yaml: graphc compile FILE --schedule takes it"
    assert guarded(["check", str(OFFLOAD), "--schedule", str(tmp_path / "best.yaml")]) == 0


def test_the_row_of_the_baseline_has_the_values_that_it_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    axes = ("--axis", "pieces=1:2", "--axis", "schedule.over.pieces=1:2", "--axis", "emit=capture")
    baseline = ("--baseline", "over.pieces=3", "--set", "schedule.emit=nodes")
    code, out, err = ran(capsys, OFFLOAD, *SIMULATED, *axes, *baseline)
    assert code == 0, err
    assert out.splitlines()[-1].split()[:3] == ["4", "3", "nodes"]


def test_measured_tables_tell_wins_and_spread(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = ran(
        capsys, extern_spec(tmp_path), "--backend", "reference", "--axis", "pieces=1,2",
        "--axis", "bits=1.0,2.0", "--rounds", "2", "--replays", "1", "--workers", "0",
    )  # fmt: skip
    assert code == 0, err
    head, first = out.splitlines()[1:3]
    assert head.split()[:3] == ["pieces", "bits", "wall"]
    assert head.split()[-3:] == ["wins", "spread", "launch"]
    assert "/2" in first
    assert "2 candidates different: 'x' differs in 32 of 32 elements" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--axis", "peices=1:4"), 2, "'peices' is no param of 'offload'"),
        (("--axis", "pieces=8:4"), 2, "8:4 is empty"),
        (("--axis", "pieces="), 2, "has no values"),
        ((), 2, "--axis"),
        (("--axis", "pieces=1:4", "--sampler", "gird"), 2, "did you mean 'grid'?"),
        (("--axis", "pieces=1:4", "--where", "pieces > 9"), 2, "no candidate is left"),
        (("--axis", "pieces=1:4", "--where", "peices > 9"), 1, "did you mean 'pieces'?"),
        (("--axis", "pieces=1:4", "--simulate", "h200x3"), 1, "h200x3"),
        (("--axis", "pieces=1:4", "--baseline", "pieces=0"), 1, "has to compile"),
        (("--axis", "pieces=1:4", "--storage", "no/such/folder.db"), 2, "there is no folder"),
        (("--axis", "pieces=0,-1"), 1, "no candidate compiled"),
        (("--axis", "pieces=1:4", "--parquet"), 2, "to the folder of --out"),
        (("--axis", "pieces=1:4", "--workers", "1000000"), 2, "from 0 to 256, not 1000000"),
    ],
)
def test_mistakes_end_with_a_code_and_a_message(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    found, _, err = ran(capsys, OFFLOAD, *SIMULATED, *words)
    assert found == code
    assert message in err
    assert "Traceback" not in err


def test_a_folder_that_is_a_file_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("")
    code, _, err = ran(
        capsys, OFFLOAD, *SIMULATED, "--axis", "pieces=1:2", "--out", tmp_path / "out"
    )
    assert code == 1
    assert "error[cannot-write]" in err
    assert "it is a file: name a folder" in err


@pytest.mark.parametrize("place", ["no/such/page.html", "."])
def test_a_page_that_cannot_be_written_is_told_before_the_sweep(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str
) -> None:
    words = ("--out", tmp_path / "out", "--html", tmp_path / place)
    code, _, err = ran(capsys, OFFLOAD, *SIMULATED, "--axis", "pieces=1:4", *words)
    assert code == 1
    assert "error[cannot-write]" in err
    assert not list(tmp_path.iterdir())


def test_a_page_that_fails_costs_no_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(path: Path, content: str) -> None:
        raise cannot_write(path, "No space left on device")

    monkeypatch.setattr(command, "write_text", full)
    words = ("--axis", "pieces=1:4", "--html", tmp_path / "page.html")
    code, out, err = ran(capsys, OFFLOAD, *SIMULATED, *words)
    assert code == 1
    assert "No space left" in err
    assert out.splitlines()[0] == "offload: 4 candidates"


def test_a_mistake_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, OFFLOAD, *SIMULATED, "--axis", "peices=1", "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "usage"


def test_a_sweep_that_the_user_stops_keeps_its_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(standing: Standing) -> None:
        if standing.done == 3:
            raise KeyboardInterrupt

    words = (OFFLOAD, *SIMULATED, "--axis", "pieces=1:9", "--out", tmp_path, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(command, "bar", lambda out: Given(stop))
        code, _, err = ran(capsys, *words)
        assert code == 130
        assert "stopped by the user" in err
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3
    code, out, _ = ran(capsys, *words)
    assert code == 0
    assert len(json.loads(out)["candidates"]) == 9


class Given:
    """A bar that is a function."""

    def __init__(self, tell: Any) -> None:
        self.tell = tell

    def __enter__(self) -> Any:
        return self.tell

    def __exit__(self, *problem: object) -> None:
        """Nothing is drawn."""


def test_a_bar_is_drawn_on_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row(Candidate(0, {"pieces": 4}), Outcome(Status.OK, Basis.PREDICTED, us=3.0, relative=1))
    standing = Standing(3, 10, row, row, 1, 2)
    with command.bar(None) as tell:
        tell(standing)
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with command.bar(None) as tell:
        tell(standing)
    assert "3/10" in terminal.getvalue()
    assert "best 3.0 us: pieces=4; 1 not ok; waiting for 2 of others" in terminal.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_help_tells_how_axes_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "--help")
    assert code == 0
    for word in ("--axis", "1:64:x2", "--simulate", "--storage", "best.yaml", "--where"):
        assert word in out


def test_optuna_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    code, _, err = ran(capsys, OFFLOAD, *SIMULATED, "--axis", "pieces=1:2")
    assert code == 2
    assert "pip install 'graphc[sweep]'" in err
