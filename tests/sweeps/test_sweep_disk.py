"""A full disk: one message, and what was measured stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_cases import MACHINE, OFFLOAD

import graphc
from graphc.sweeps.rows import Basis, Candidate, Outcome, Row, Status, append_lines
from graphc.text.diagnostics import SpecError

# Files may not grow beyond so many bytes, which is what a full disk does to them.
FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from graphc.cli import main
main(sys.argv[2:])
"""
COMMAND = [
    "sweep", str(OFFLOAD), "--simulate", MACHINE, "--axis", "pieces=1:24", "--set", "route=host",
    "--workers", "0",
]  # fmt: skip


def ran(limit: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FULL, str(limit), *COMMAND, *words], capture_output=True, text=True
    )


@pytest.mark.parametrize("storage", ["sweep.journal", "sweep.db"])
def test_a_disk_that_fills_up_costs_nothing_that_was_measured(tmp_path: Path, storage: str) -> None:
    where = ("--out", str(tmp_path / "out"), "--storage", str(tmp_path / storage))
    limit = 9000 if storage.endswith("journal") else 123_000
    full = ran(limit, *where)
    assert full.returncode == 1, full.stderr
    assert "error[cannot-write]" in full.stderr
    assert "what was measured is kept" in full.stderr
    assert "Traceback" not in full.stderr
    kept = (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
    assert 0 < len(kept) < 24
    again = ran(10**9, *where, "--json")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)["candidates"]
    alone = graphc.sweep(OFFLOAD, {"pieces": "1:24"}, route="host", machine=MACHINE, workers=0)
    assert found == json.loads(json.dumps([each.to_json() for each in alone.rows]))


def test_a_row_that_cannot_be_written_is_told() -> None:
    row = Row(Candidate(0, {"a": 1}), Outcome(Status.OK, Basis.PREDICTED, us=1.0, relative=1.0))
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with pytest.raises(SpecError, match="cannot write '/dev/full': No space left") as caught:
        append_lines(Path("/dev/full"), [row])
    assert "what was measured is kept" in str(caught.value)
