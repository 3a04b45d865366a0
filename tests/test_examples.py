"""Every example runs to its end, from an empty folder, as a newcomer would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted((*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/run.py")))
# What each must say, beside ending well.
SAYS = {
    "own_kernel/run.py": "right: True",
    "own_route/run.py": "host and host_push_copy left the same bits: True",
    "peer_layer.py": "all schedules left the same bits",
    "plan_file.py": "the same bits: True",
    "replay_loop.py": " 41 rows in use",
    "sweep_peer_layer.py": "the winner, compiled from",
}


def name_of(path: Path) -> str:
    return path.relative_to(EXAMPLES).as_posix()


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_an_example_runs(program: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS[name_of(program)] in done.stdout
    if program.name == "peer_layer.py":
        assert (tmp_path / "out" / "peer_layer.svg").read_text().startswith("<svg")


def test_the_makefile_runs_the_main_job() -> None:
    assert "examples/peer_layer.py" in (ROOT / "Makefile").read_text()
