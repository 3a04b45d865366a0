"""Figures in the docs are those of the raw rows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from report import PAGES, RESULTS, filled  # noqa: E402


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_are_those_of_the_raw_rows(page: Path) -> None:
    assert filled(page.read_text()) == page.read_text()


@pytest.mark.parametrize(
    "options",
    [(), ("--rows", "benchmarks/results/sweep_peer_layer.jsonl", "--what", "sweep"), ("--v100",)],
    ids=lambda options: options[0] if options else "rows of the layer",
)
def test_the_errors_of_predictions_are_those_of_now(options: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "prediction.py"), *options]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [as_on_the_page(line) for line in told.splitlines() if re.match(r"\| .*\d", line)]
    assert len(lines) >= 3
    page = (ROOT / "docs" / "simulate.md").read_text()
    assert [line for line in lines if line not in page] == []


def as_on_the_page(line: str) -> str:
    """Without the schedules' names, and with a space in front of each percent.

    >>> as_on_the_page("| p2p | 9 | 1.5% | -6% (pieces=1) | +2.0% (pieces=2) |")
    '| p2p | 9 | 1.5 % | -6 % | 2.0 % |'
    """
    bare = re.sub(r" \([^|]*\)", "", line).replace("%", " %").replace("  %", " %")
    if bare.count("|") == 5:  # two V100: the page says more of what was reported
        return bare.rpartition(" %")[0]
    head, mark, last = bare.removesuffix(" |").rpartition(" | ")
    return f"{head}{mark}{last.removeprefix('+')} |"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_row_says_on_what_it_was_measured(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows
    assert all({"gpu", "driver"} <= set(row) or {"python", "processor"} <= set(row) for row in rows)
