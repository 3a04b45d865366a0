"""``graphc sweep --html``: the page, with predictions beside what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from graphc.cli.guard import guarded

SWEEP = ("sweep", "examples/offload.yaml", "--axis", "route=host,p2p", "--axis", "pieces=1,2")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data["sweep"]  # type: ignore[no-any-return]


def test_a_simulated_sweep_has_a_page(tmp_path: Path) -> None:
    page = tmp_path / "sweep.html"
    words = ["--simulate", "h200x2", "--workers", "0", "--out", str(tmp_path / "out")]
    assert guarded([*SWEEP, *words, "--html", str(page)]) == 0
    sweep = data_of(page)
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert [each["us"] for each in sweep["rows"]] == [each["us"] for each in rows]
    best = min(rows, key=lambda each: each["relative"])
    assert sweep["rows"][sweep["winner"]]["values"] == best["values"]
    assert (sweep["x"], sweep["by"]) == ("pieces", "route")
    assert sweep["basis"] == "predicted"


def test_predictions_stand_beside_what_was_measured(tmp_path: Path) -> None:
    page = tmp_path / "sweep.html"
    words = ["--set", "tokens=64", "--set", "hidden=32", "--workers", "0", "--rounds", "1"]
    words += ["--replays", "1", "--machine", "h200x2", "--html", str(page)]
    assert guarded([*SWEEP, "--backend", "reference", *words]) == 0
    sweep = data_of(page)
    assert sweep["basis"] == "wall"
    assert all(each["predicted_us"] > 0 for each in sweep["rows"])
    assert [each["name"] for each in sweep["table"]["columns"]][4:6] == ["predicted", "error"]


def test_a_machine_that_refuses_a_route_predicts_nothing_of_it(tmp_path: Path) -> None:
    page = tmp_path / "sweep.html"
    words = ["--set", "tokens=64", "--set", "hidden=32", "--workers", "0", "--rounds", "1"]
    words += ["--replays", "1", "--machine", "h200x2_no_p2p", "--html", str(page)]
    assert guarded([*SWEEP, "--backend", "reference", *words]) == 0
    known = {
        (each["values"]["route"], each["predicted_us"] is not None)
        for each in data_of(page)["rows"]
    }
    assert known == {("host", True), ("p2p", False)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machine", "h200x2"], "give --html, too"),
        (
            ["--machine", "h200x2", "--simulate", "h200x2", "--html", "x.html"],
            "leave --machine out",
        ),
        (["--machine", "no_such_machine", "--html", "x.html"], "no_such_machine"),
    ],
)
def test_a_machine_for_nothing_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded([*SWEEP, *words]) in (1, 2)
    assert message in capsys.readouterr().err
