"""What pages hold: every op once, its times in each view, its buffers; facts and tables."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import graphc
from graphc.cli.guard import guarded
from graphc.draw.look import plan_page, simulation_page, sweep_page
from graphc.ir import Copy, Role
from graphc.plan import Plan


def data_of(page: str) -> dict[str, Any]:
    """What the page's scripts read; the page asks for nothing else."""
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    assert not re.search(r"\b(?:fetch|import|XMLHttpRequest)\s*\(", page)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


@cache
def plan() -> Plan:
    return graphc.compile("moe_peer", preset="small", route="host", cubins=False, arch="sm_90a")


def test_a_plan_is_there_op_by_op() -> None:
    schedule = plan().variants[0].schedule
    data = data_of(plan_page(schedule, title="a plan", phases=plan().phases))
    ops = data["ops"]
    assert ops["name"] == [op.name for op in schedule.program]
    assert {len(each) for each in ops.values()} == {len(schedule.program.ops)}
    at = ops["name"].index("layer.0/combine/piece.1")
    assert data["phases"][ops["phase"][at]] == "combine"
    assert (ops["piece"][at], ops["of"][at]) == (1, 3)
    touched = [data["accesses"][each] for each in ops["accesses"][at]]
    assert any(each.startswith("out=layer.0/out[") for each in touched)
    before = {ops["name"][each] for each in ops["before"][at]}
    assert before == {first for first, second in schedule.edges if second == ops["name"][at]}
    copies = {op.name for op in schedule.program if isinstance(op.work, Copy)}
    assert {ops["name"][each] for each, is_copy in enumerate(ops["isCopy"]) if is_copy} == copies


def test_scratch_lies_in_its_arenas_with_those_who_use_it() -> None:
    schedule = plan().variants[0].schedule
    data = data_of(plan_page(schedule, title="a plan", phases={}))
    buffers = {each["name"]: each for arena in data["arenas"] for each in arena["buffers"]}
    scratch = {name for name, each in schedule.program.buffers.items() if each.role is Role.SCRATCH}
    assert {*buffers} == scratch
    for arena in data["arenas"]:
        for each in arena["buffers"]:
            assert 0 <= each["offset"] <= each["offset"] + each["nbytes"] <= arena["nbytes"]
    users = {data["ops"]["name"][each] for each in buffers["layer.0/p_sum"]["ops"]}
    assert users == {
        *(f"layer.0/sums/piece.{at}" for at in range(3)),
        *(f"layer.0/results/down/piece.{at}" for at in range(3)),
    }


def test_a_simulation_has_its_times_critical_path_and_bounds() -> None:
    found = graphc.simulate(plan(), machine="h200x2")
    data = data_of(simulation_page(found, title="predicted", phases=plan().phases))
    (view,) = data["views"]
    slices = found.timeline.slices
    names = [data["ops"]["name"][each] for each in view["op"]]
    assert names == [each.op for each in slices]
    assert view["start"] == [pytest.approx(each.start_us, abs=1e-3) for each in slices]
    waits = {
        name: [data["ops"]["name"][each] for each in own]
        for name, own in zip(names, view["waits"], strict=True)
    }
    assert waits == {each.op: list(each.waited_for) for each in slices}
    critical = [data["ops"]["name"][each] for each in view["critical"]]
    last = max(slices, key=lambda each: each.stop_us)
    assert critical[-1] == last.op
    tables = {each["title"]: each for each in view["tables"]}
    assert {*tables} == {"Phases", "Critical path", "Engines", "Lower bounds"}
    assert [row[0] for row in tables["Phases"]["rows"]] == [*plan().phases]
    assert all(0 <= row[1] <= 1 for row in tables["Engines"]["rows"])
    assert sorted(name for name, _ in view["facts"] if not name.startswith("lower bound")) == [
        "launch, of the host",
        "predicted",
    ]


def test_titles_cannot_break_out_of_the_page() -> None:
    schedule = plan().variants[0].schedule
    page = plan_page(schedule, title="</title><script>alert(1)</script>", phases={})
    assert "<script>alert" not in page


def test_a_sweep_without_numbers_or_names_still_has_axes() -> None:
    rows = [
        {"index": 0, "values": {"emit": "nodes"}, "status": "ok", "reason": None, "us": 1.0},
        {"index": 1, "values": {"emit": "capture"}, "status": "ok", "reason": None, "us": 2.0},
    ]
    sweep = data_of(sweep_page(rows, name="n", axes=["emit"], winner=0, basis="measured"))["sweep"]
    assert (sweep["x"], sweep["by"]) == (None, "emit")
    assert [each["name"] for each in sweep["table"]["columns"]] == [
        "emit", "time", "of the baseline", "status",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["show", "moe_peer", "--preset", "small", "--set", "route=p2p"],
        ["show", "hand/peer_pieces"],
        ["simulate", "moe_peer", "--preset", "small", "--machine", "h200x2"],
        ["simulate", "moe_peer", "--preset", "small", "--machine", "h200x2",
         "--set", "schedule.units=device"],
    ],
)  # fmt: skip
def test_commands_write_pages(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert guarded([*words, "--html", str(page)]) == 0
    assert f"wrote {page}" in capsys.readouterr().err
    data = data_of(page.read_text())
    assert len(data["views"]) == 1
    assert data["views"][0]["op"]


def test_a_page_is_not_written_over_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["show", "moe_peer", "--preset", "small", "--html", str(tmp_path)]) == 1
    assert "it is a folder: name a file" in capsys.readouterr().err


def test_suggestions_have_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "moe_peer", "--machine", "h200x2", "--suggest", "--html", "page.html"]
    assert guarded(words) == 2
    assert "--suggest draws nothing" in capsys.readouterr().err
