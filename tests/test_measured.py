"""Figures in the docs are those of the raw rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from report import PAGES, RESULTS, filled  # noqa: E402


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_are_those_of_the_raw_rows(page: Path) -> None:
    assert filled(page.read_text()) == page.read_text()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_row_says_on_what_it_was_measured(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows
    assert all({"gpu", "driver"} <= set(row) or {"python", "processor"} <= set(row) for row in rows)
