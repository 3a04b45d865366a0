"""Workers end and the sweep goes on: faults, hangs, ends, in processes of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import OFFLOAD, extern_spec

import graphc
from graphc.sweeps.axes import axes_of
from graphc.sweeps.job import Job
from graphc.sweeps.rows import Candidate, Outcome, Status
from graphc.sweeps.space import Space
from graphc.sweeps.sweep import Sweep, Wanted, run_sweep
from graphc.sweeps.workers import Here, Pool, Workers, cores, enough
from graphc.text.diagnostics import CudaError, UsageError


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    settings = getattr(request, "param", {})
    made = Pool(
        Job(str(OFFLOAD), "sweep_cases:Scripted", settings=settings),
        settings.get("workers", 1),
        limit_s=settings.get("limit_s", 30.0),
    )
    yield made
    made.close()


def judged(pool: Pool, *wanted: dict[str, Any]) -> list[Outcome]:
    assert pool.baseline.us == 100.0
    left = [Candidate(index, values) for index, values in enumerate(wanted)]
    found: dict[int, Outcome] = {}
    until = time.monotonic() + 60
    while len(found) < len(wanted):
        assert time.monotonic() < until
        while left and pool.idle:
            pool.give(left.pop(0))
        found |= {each.index: outcome for each, outcome in pool.collect(0.5)}
    return [found[index] for index in range(len(wanted))]


def test_a_worker_that_ends_is_replaced_and_its_candidate_has_failed(pool: Pool) -> None:
    well, bad, again = judged(pool, {"pieces": 11}, {"how": "exit"}, {"pieces": 12})
    assert (well.us, again.us) == (50.0, 51.0)
    assert bad.status is Status.FAILED
    assert bad.reason == "its worker ended (exit code 9)"


def test_a_worker_that_cannot_go_on_after_a_fault_is_replaced(pool: Pool) -> None:
    bad, again = judged(pool, {"how": "fault"}, {"pieces": 12})
    assert bad.status is Status.FAILED
    assert "CUDA_ERROR_ILLEGAL_ADDRESS: told so (op 'act')" in str(bad.reason)
    assert again.us == 51.0


@pytest.mark.parametrize("pool", [{"limit_s": 1.0}], indirect=True)
def test_a_candidate_that_hangs_fails_after_the_limit(pool: Pool) -> None:
    bad, again = judged(pool, {"how": "hang"}, {"pieces": 12})
    assert bad.status is Status.FAILED
    assert bad.reason == "it took longer than 1 s"
    assert again.us == 51.0


@pytest.mark.parametrize("pool", [{"workers": 2, "slow_s": 0.2}], indirect=True)
def test_several_workers_work_at_once(pool: Pool) -> None:
    found = judged(pool, *({"pieces": each} for each in range(8)))
    assert [each.us for each in found] == [50.0 + (each - 11) ** 2 for each in range(8)]
    assert len(pool.workers) == 2


def test_what_a_candidate_may_not_have_is_refused_and_the_worker_stays(pool: Pool) -> None:
    assert pool.baseline
    process = pool.workers[0].process.pid
    bad, _ = judged(pool, {"how": "usage"}, {"pieces": 1})
    assert (bad.status, bad.reason) == (Status.REFUSED, "told so")
    assert pool.workers[0].process.pid == process


@pytest.mark.parametrize("pool", [{"no_baseline": "exit"}], indirect=True)
def test_a_baseline_that_ends_its_worker_ends_the_sweep(pool: Pool) -> None:
    with pytest.raises(CudaError, match=r"the baseline cannot be run: .*exit code 5"):
        assert pool.baseline


@pytest.mark.parametrize("pool", [{"no_baseline": "raise"}], indirect=True)
def test_what_a_baseline_raises_is_raised_here(pool: Pool) -> None:
    with pytest.raises(CudaError, match="CUDA_ERROR_NO_DEVICE") as caught:
        assert pool.baseline
    assert caught.value.error == "CUDA_ERROR_NO_DEVICE"


def test_an_evaluator_that_is_not_there_is_named() -> None:
    pool = Pool(Job(str(OFFLOAD), "sweep_cases:Nothing"), 1, 30.0)
    try:
        with pytest.raises(UsageError, match="the evaluator 'sweep_cases:Nothing'"):
            assert pool.baseline
    finally:
        pool.close()


def test_workers_end_with_their_sweep(pool: Pool) -> None:
    assert pool.baseline
    process = pool.workers[0].process
    pool.close()
    assert process.poll() is not None


def test_a_worker_that_hangs_ends_with_a_sweep_that_is_killed() -> None:
    import os
    import signal
    import subprocess

    program = (
        "import sys, time; sys.path[:] = sys.argv[1:]; import test_sweep_workers as t; "
        "pool = t.Pool(t.Job(str(t.OFFLOAD), 'sweep_cases:Scripted'), 1, 60.0); "
        "pool.baseline; pool.give(t.Candidate(0, {'how': 'hang'})); "
        "print(pool.workers[0].process.pid, flush=True); time.sleep(60)"
    )
    sweep = subprocess.Popen(
        [sys.executable, "-c", program, *sys.path], stdout=subprocess.PIPE, text=True
    )
    assert sweep.stdout is not None
    worker = int(sweep.stdout.readline())
    assert is_alive(worker)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    until = time.monotonic() + 20
    while is_alive(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(worker)


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_few_candidates_start_few_workers() -> None:
    assert [enough(count, 8) for count in (1, 16, 1000)] == [1, 2, 8]
    assert cores() >= 1


@pytest.mark.parametrize("count", [-1, 257, 10**9])
def test_no_number_of_workers_is_taken_that_no_machine_could_bear(count: int) -> None:
    with pytest.raises(UsageError, match="from 0 to 256"):
        graphc.sweep(OFFLOAD, {"pieces": [1, 2]}, machine="h200x2", workers=count)


def test_no_more_workers_are_started_than_there_are_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def here(job: Job, count: int, limit_s: float) -> Workers:
        asked.append(count)
        return Here(job)

    monkeypatch.setattr("graphc.sweeps.sweep.workers_of", here)
    graphc.sweep(OFFLOAD, {"pieces": [1, 2]}, machine="h200x2", workers=200)
    assert asked == [2]


def scripted(axes: dict[str, Any], out: Path | None = None, **settings: Any) -> Sweep:
    job = Job(str(OFFLOAD), "sweep_cases:Scripted", settings=settings)
    return run_sweep(Wanted(Space(job, axes_of(axes)), out=out, workers=1, limit_s=30))


def test_an_op_that_ends_the_process_fails_alone(tmp_path: Path) -> None:
    """The whole way: a function of an extern op on the reference backend."""
    found = graphc.sweep(
        extern_spec(tmp_path),
        {"how": ["well", "exit", "raise", "wel"], "pieces": [1, 2]},
        backend="reference", rounds=2, replays=1, out=tmp_path / "out",
    )  # fmt: skip
    status = [each.outcome.status.value for each in found.rows]
    assert status == ["ok", "ok", "failed", "failed", "refused", "refused", "ok", "ok"]
    ended, raised = found.rows[2].outcome.reason, found.rows[4].outcome.reason
    assert ended == "its worker ended (exit code 9): the op was told to exit"
    assert raised is not None
    assert raised.startswith("function-failed:")
    assert found.best is not None
    assert found.best.is_ok


def test_an_op_that_hangs_fails_alone(tmp_path: Path) -> None:
    found = graphc.sweep(
        extern_spec(tmp_path), {"how": ["hang", "well"]},
        backend="reference", rounds=1, replays=1, limit_s=3.0,
    )  # fmt: skip
    assert [each.outcome.status.value for each in found.rows] == ["failed", "ok"]
    assert found.rows[0].outcome.reason == "it took longer than 3 s"


def test_a_program_without_a_main_guard_sweeps(tmp_path: Path) -> None:
    """Workers do not run the caller's program again."""
    import subprocess

    program = tmp_path / "program.py"
    program.write_text(
        "import graphc\nprint('once')\n"
        f"r = graphc.sweep({str(OFFLOAD)!r}, {{'pieces': '1:4'}}, machine='h200x2', route='host')\n"
        "print(len(r.rows))\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.stdout.split() == ["once", "4"], done.stderr
