"""Predictions beside rows: which rows are taken, and what is said when there are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCRIPT, ROWS = ROOT / "benchmarks" / "prediction.py", ROOT / "benchmarks" / "results"


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)


def test_the_rows_of_a_sweep_are_told_by_route_and_by_op() -> None:
    found = ran("--rows", str(ROWS / "sweep_steps.jsonl"), "--what", "sweep", "--ops")
    assert found.returncode == 0, found.stderr
    assert "| all | 20 |" in found.stdout
    assert "| p_up | 20 |" in found.stdout


def test_rows_of_another_kind_are_named() -> None:
    found = ran("--rows", str(ROWS / "sweep_steps.jsonl"), "--what", "nothing")
    assert found.returncode == 1
    assert found.stderr.startswith("no row of")
    assert "Traceback" not in found.stderr
