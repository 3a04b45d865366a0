"""Whole sweeps by a machine profile: rows, the winner's file, and a sweep that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import MACHINE, OFFLOAD

import graphc
from graphc.draw.dump import dump_any
from graphc.sweeps import sweep as sweeps
from graphc.sweeps.axes import axes_of
from graphc.sweeps.job import Job
from graphc.sweeps.rows import Row
from graphc.sweeps.space import Space
from graphc.sweeps.sweep import Standing, Sweep, Wanted, run_sweep
from graphc.text.diagnostics import SpecError, UsageError

AXES = {"route": ["host", "host_copy", "p2p"], "pieces": "1:8"}
SIZE = {"tokens": 4096, "hidden": 512}


def swept(axes: Any = None, **options: Any) -> Sweep:
    return graphc.sweep(OFFLOAD, axes or AXES, machine=MACHINE, workers=0, **{**SIZE, **options})


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_every_candidate_has_the_time_that_simulate_tells() -> None:
    found = swept()
    assert [each.candidate.index for each in found.rows] == list(range(24))
    for row in found.rows[::5]:
        alone = graphc.simulate(OFFLOAD, machine=MACHINE, **SIZE, **row.candidate.values)
        assert row.outcome.us == alone.total_us
    base = graphc.simulate(OFFLOAD, machine=MACHINE, **SIZE)
    assert found.baseline.us == base.total_us
    best = min(found.rows, key=lambda each: each.outcome.us or 0)
    assert found.best == best
    assert best.outcome.relative == pytest.approx((best.outcome.us or 0) / base.total_us)


def test_rows_hold_all_params_and_where_the_time_is_from(tmp_path: Path) -> None:
    found = swept(out=tmp_path, tokens=1024)
    rows = rows_in(tmp_path)
    assert rows == [each.to_json() for each in found.rows]
    first = rows[0]
    assert first["values"] == {"route": "host", "pieces": 1}
    assert first["params"] == {"tokens": 1024, "hidden": 512, "route": "host", "pieces": 1}
    assert (first["status"], first["reason"], first["basis"]) == ("ok", None, "predicted")
    assert first["proven_pairs"] > 0


@pytest.mark.parametrize(
    "schedule", [None, "memory: tight\nover: {route: =route}\nback: {route: =route, pieces: 2}\n"]
)
def test_the_winners_file_compiles_to_the_winner(tmp_path: Path, schedule: str | None) -> None:
    file = None
    if schedule is not None:
        file = tmp_path / "own.yaml"
        file.write_text("params: {tokens: 2048}\n" + schedule)
    axes = {"route": ["host", "p2p"], "back.pieces": [["1/4", "3/4"], 3], "emit": ["nodes"]}
    found = swept(axes, out=tmp_path / "o", schedule=file, pieces=5, tokens=4096)
    assert found.best is not None
    ((by_file, _),) = graphc.check(OFFLOAD, schedule=tmp_path / "o" / "best.yaml")
    values = {**SIZE, "pieces": 5, **found.best.candidate.values}
    ((by_values, _),) = graphc.check(OFFLOAD, schedule=file, **values)
    assert dump_any(by_file) == dump_any(by_values)
    assert (tmp_path / "o" / "best.yaml").read_text().startswith("# The best of 4 schedules of off")


def test_a_preset_is_in_the_winners_file(tmp_path: Path) -> None:
    found = graphc.sweep(
        "moe_peer", {"route": ["host", "p2p"]}, preset="small", machine=MACHINE, workers=0,
        out=tmp_path,
    )  # fmt: skip
    assert found.best is not None
    ((schedule, _),) = graphc.check("moe_peer", schedule=tmp_path / "best.yaml")
    assert schedule.program.capacity == 37


def test_candidates_that_do_not_compile_are_told_and_never_win(tmp_path: Path) -> None:
    found = swept({"pieces": [0, 2, 70000], "route": ["host", "hots"]}, out=tmp_path)
    status = [each.outcome.status.value for each in found.rows]
    assert status == ["refused", "refused", "ok", "refused", "refused", "refused"]
    reasons = [str(each.outcome.reason) for each in found.rows]
    assert "'pieces' is 0, but must be at least 1 (pieces=0)" in reasons[0]
    assert "unknown-route" in reasons[3]
    assert "pieces go from 1 to 65536" in reasons[4]
    assert found.best == found.rows[2]
    assert rows_in(tmp_path)[0]["reason"] == reasons[0]


def test_a_sweep_without_a_winner_says_so(tmp_path: Path) -> None:
    found = swept({"pieces": [0, -1]}, out=tmp_path)
    assert found.best is None
    assert not (tmp_path / "best.yaml").exists()


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("hand/peer_whole", {}, "is a hand-written schedule"),
        (OFFLOAD, {"baseline": {"pieces": 0}}, "the baseline of a sweep has to compile"),
        (OFFLOAD, {"tokens": -1}, "the baseline of a sweep has to compile"),
        (OFFLOAD, {"machine": "no_such_machine"}, "no_such_machine"),
        (OFFLOAD, {"where": "pieces >"}, "--where pieces >"),
        (OFFLOAD, {"rounds": 0, "machine": None, "backend": "reference"}, "'rounds' is a whole"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_starts(
    path: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    options = {"machine": MACHINE, **options}
    with pytest.raises((UsageError, SpecError)) as caught:
        graphc.sweep(path, {"pieces": [1, 2]}, out=tmp_path / "out", workers=0, **options)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_sweep_again_asks_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = swept(out=tmp_path)
    monkeypatch.setattr(sweeps, "workers_of", lambda *args: NoWorkers())
    again = swept(out=tmp_path)
    assert again == first


class NoWorkers:
    """Nobody may be asked."""

    count = idle = 1

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"tokens": 64}, {"baseline": {"pieces": 2}}, {"axes": {"pieces": "1:9"}}],
    ids=str,
)
def test_a_folder_of_another_sweep_is_refused_and_stays(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    swept({"pieces": "1:4"}, out=tmp_path)
    before = (tmp_path / "rows.jsonl").read_bytes()
    with pytest.raises(UsageError, match="holds another sweep"):
        swept(**{"axes": {"pieces": "1:4"}, "out": tmp_path, **change})
    assert (tmp_path / "rows.jsonl").read_bytes() == before


def test_a_changed_spec_is_another_sweep(tmp_path: Path) -> None:
    path = tmp_path / "offload.yaml"
    path.write_text(OFFLOAD.read_text())
    graphc.sweep(path, {"pieces": "1:2"}, machine=MACHINE, workers=0, out=tmp_path / "o")
    path.write_text(OFFLOAD.read_text().replace("f16}}", "f32}}"))
    with pytest.raises(UsageError, match="spec: its content was another"):
        graphc.sweep(path, {"pieces": "1:2"}, machine=MACHINE, workers=0, out=tmp_path / "o")


def test_more_trials_go_on_with_the_rows_of_fewer(tmp_path: Path) -> None:
    few = swept({"pieces": "1:40"}, out=tmp_path, trials=5)
    more = swept({"pieces": "1:40"}, out=tmp_path, trials=12)
    assert len(few.rows) == 5
    assert len(more.rows) == 12
    assert set(map(key, few.rows)) < set(map(key, more.rows))


def key(row: Row) -> str:
    return row.candidate.key


def test_progress_tells_how_far_it_is() -> None:
    told: list[Standing] = []
    swept({"pieces": [0, 1, 2]}, progress=told.append)
    assert [(each.done, each.total, each.not_ok) for each in told] == [
        (1, 3, 1), (2, 3, 1), (3, 3, 1),
    ]  # fmt: skip
    assert told[0].best is None
    assert told[-1].best is not None


KILLED = """
import sys
import graphc
sampler, out = sys.argv[1:3]
graphc.sweep({path!r}, {{"route": ["host", "host_copy", "p2p"], "pieces": "1:24"}}, out=out,
    machine={machine!r}, sampler=sampler, trials=24 if sampler == "tpe" else None, seed=7,
    workers=2, tokens=4096, hidden=512)
print("done")
"""


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_a_sweep_that_was_killed_ends_as_one_left_alone(tmp_path: Path, sampler: str) -> None:
    program = KILLED.format(path=str(OFFLOAD), machine=MACHINE)
    command = [sys.executable, "-c", program, sampler]
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert subprocess.run([*command, str(alone)], capture_output=True).stdout == b"done\n"
    for wanted in (3, 11):
        running = subprocess.Popen([*command, str(killed)], stdout=subprocess.PIPE)
        until = time.monotonic() + 60
        while lines_of(killed) < wanted and running.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.002)
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
        assert lines_of(killed) < len(rows_in(alone)), "it was to be killed in the middle"
    assert subprocess.run([*command, str(killed)], capture_output=True).stdout == b"done\n"
    assert (killed / "rows.jsonl").read_bytes() == (alone / "rows.jsonl").read_bytes()
    assert (killed / "best.yaml").read_bytes() == (alone / "best.yaml").read_bytes()


def lines_of(folder: Path) -> int:
    path = folder / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_two_processes_share_a_sweep_and_each_has_all_rows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import sys; sys.path[:] = sys.argv[2:]; import test_sweep_simulated as t; "
        "found = t.shared(sys.argv[1]); print(len(found.rows), found.best.candidate.label)"
    )
    command = [sys.executable, "-c", program, str(tmp_path), *sys.path]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {each.communicate()[0] for each in both}
    assert said == {"30 pieces=11\n"}
    assert len(log.read_text().splitlines()) == 30  # none was judged twice


def shared(folder: str) -> Sweep:
    settings = {"slow_s": 0.03, "log": f"{folder}/log"}
    job = Job(str(OFFLOAD), "sweep_cases:Scripted", settings=settings)
    space = Space(job, axes_of({"pieces": "1:30"}))
    return run_sweep(Wanted(space, storage=f"sqlite:///{folder}/shared.db", workers=0))


def test_parquet_has_a_column_for_each_param_or_says_what_it_needs(tmp_path: Path) -> None:
    axes = {"pieces": [1, 2, 0], "back.pieces": [["1/4", "3/4"], 2]}
    try:
        from pyarrow import parquet
    except ImportError:
        with pytest.raises(UsageError, match="pip install pyarrow"):
            swept(axes, out=tmp_path, parquet=True)
        assert not list(tmp_path.iterdir())  # told before anything is tried
        return
    swept(axes, out=tmp_path, parquet=True)
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.num_rows == 6
    assert {"us", "status", "param.tokens", "axis.pieces", "axis.back.pieces"} <= {
        *table.column_names
    }
