"""Specs of many ranks, their peers, groups and entries."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphc
from graphc.backends.binding import buffer_named
from graphc.ir import Mode, Op, Program, Role, Rows, RowsKind
from graphc.kernels.contract import Catalog
from graphc.plan import Need, Requirement
from graphc.regions import Region
from graphc.resources import kernel_folders, route_folders
from graphc.routes import load_routes
from graphc.spec.build import Built, build
from graphc.spec.model import parse_spec
from graphc.text.diagnostics import SpecError, UsageError
from graphc.text.load import parse_yaml

KERNELS = Path(__file__).parent / "kernels"
CATALOG = Catalog(kernel_folders([KERNELS]))
ROUTES = load_routes(route_folders())
SUM = """
graphc: 1
name: sum
params:
  ranks: {default: 3, min: 1, max: 64}
  gpus: {default: 2, min: 1}
  rows: {default: 4}
  layers: {default: 1}
  pieces: {default: 1}
  is_apart: {default: false}
  has_all: {default: true}
ranks: {count: ranks}
devices: {ranks: rank % gpus}
buffers:
  x: {dtype: f32, shape: [rows, 8], role: input}
  own: {dtype: f32, shape: [rows, 8], if: rank == 0}
  sums: {dtype: f32, shape: [ranks, 8], symmetric: true, role: state}
  all: {dtype: f32, shape: [ranks * rows, 8], symmetric: true, role: state, if: has_all}
  words: {dtype: u32, shape: [4], role: status}
  y: {dtype: f32, shape: [ranks, 8], role: output}
entries:
  step: {groups: "=['move'] if is_apart else ['prepare', 'move']", after: [prepare]}
  prepare: {groups: [prepare], if: is_apart}
groups:
  prepare:
    - {name: give, kernel: give, args: {x: x, y: {peers: sums, row: rank}}}
  move:
    - name: spread
      kernel: spread
      args: {x: x, y: {peers: all}, status: words}
      scalars: {rank: rank}
    - repeat: layers
      index: layer
      body:
        - {name: fetch, kernel: fetch, args: {x: {peers: sums}, y: y}}
    - {name: only, fill: {target: own, value: rank + 1}, if: rank == 0}
schedule:
  spread: {pieces: pieces, blocks: 3}
  fetch: {after: "=['spread'] if layer == 0 else []"}
"""


def built(text: str = SUM, **values: Any) -> Built:
    spec = parse_spec(parse_yaml(text, "spec.yaml"))
    return build(spec, values, CATALOG, ROUTES)


def program(text: str = SUM, **values: Any) -> Program:
    found = built(text, **values).program
    assert found is not None
    return found


def op(found: Program, name: str) -> Op:
    return next(each for each in found if each.name == name)


def test_ops_stand_op_by_op_then_rank() -> None:
    names = [each.name for each in program(layers=2)]
    assert names == [
        *(f"rank.{rank}/give" for rank in range(3)),
        *(f"rank.{rank}/spread" for rank in range(3)),
        *(f"rank.{rank}/layer.{layer}/fetch" for layer in range(2) for rank in range(3)),
        "rank.0/only",
    ]


def test_an_op_knows_its_family_and_its_device() -> None:
    found = program(layers=2)
    assert {each.family for each in found} == {
        "give",
        "spread",
        "layer.0/fetch",
        "layer.1/fetch",
        "only",
    }
    assert op(found, "rank.2/layer.1/fetch").kin == "layer.1/fetch"
    assert found.rank_devices == ("gpu0", "gpu1", "gpu0")
    assert found.devices == ("gpu0", "gpu1")
    assert [each.device for each in found][:3] == ["gpu0", "gpu1", "gpu0"]


def test_every_buffer_exists_once_a_rank_where_its_condition_holds() -> None:
    buffers = program().buffers
    assert {name for name in buffers if name.endswith("/x")} == {f"rank.{i}/x" for i in range(3)}
    assert {name for name in buffers if name.endswith("/own")} == {"rank.0/own"}
    assert buffers["rank.1/sums"].device == "gpu1"
    assert buffers["rank.1/sums"].is_symmetric
    assert not buffers["rank.1/x"].is_symmetric


def test_an_argument_over_all_ranks_has_an_access_for_each() -> None:
    found = op(program(), "rank.1/give")
    row = Rows(RowsKind.ROW, 1)
    assert [(each.argument, each.region, each.rows, each.peer) for each in found.accesses[1:]] == [
        ("y", Region(f"rank.{peer}/sums", 32, 64), row, peer) for peer in range(3)
    ]
    assert found.work.scalars == {"rank": 1}  # type: ignore[union-attr]
    fetched = op(program(), "rank.2/layer.0/fetch").accesses
    assert [each.region for each in fetched[:3]] == [
        Region(f"rank.{peer}/sums", 0, 96) for peer in range(3)
    ]
    assert {each.mode for each in fetched[:3]} == {Mode.READ}


def test_an_argument_over_all_ranks_may_be_left_out() -> None:
    found = op(program(has_all=False), "rank.0/spread")
    assert {each.argument for each in found.accesses} == {"x", "status"}
    assert found.work.symbols["ranks"] == 0  # type: ignore[union-attr]


def test_a_schedule_entry_holds_for_all_ranks() -> None:
    found = program(pieces=2)
    for rank in range(3):
        placement = op(found, f"rank.{rank}/spread").placement
        assert len(placement.pieces) == 3
        assert placement.blocks == 3
        after = op(found, f"rank.{rank}/layer.0/fetch").placement.after
        assert after == (f"rank.{rank}/spread",)


@settings(max_examples=20)
@given(ranks=st.integers(1, 64), gpus=st.integers(1, 70))
def test_ranks_go_where_the_spec_says(ranks: int, gpus: int) -> None:
    found = program(ranks=ranks, gpus=gpus)
    assert found.rank_devices == tuple(f"gpu{rank % gpus}" for rank in range(ranks))
    assert found.devices == tuple(f"gpu{number}" for number in range(min(ranks, gpus)))


def test_entries_are_programs_of_their_groups() -> None:
    together = built()
    assert [each.entry for each in together.programs] == ["step"]
    assert together.sequence == ("step",)
    apart = built(is_apart=True)
    assert [each.entry for each in apart.programs] == ["step", "prepare"]
    assert apart.sequence == ("prepare", "step")
    assert {each.family for each in apart.programs[1]} == {"give"}
    assert "give" not in {each.family for each in apart.programs[0]}
    with_roles = [
        {name for name, each in one.buffers.items() if each.role is not Role.SCRATCH}
        for one in apart.programs
    ]
    assert with_roles[0] == with_roles[1]


ENTRIES = """
graphc: 1
name: entries
devices: [one]
buffers:
  x: {device: one, dtype: f32, shape: [4, 8], role: inout}
  y: {device: one, dtype: f32, shape: [4, 8], role: inout}
groups:
  a: [{name: a, kernel: scale, device: one, args: {x: x, y: y, factor: 2}}]
  b: [{name: b, kernel: scale, device: one, args: {x: y, y: x, factor: 3}}]
"""


def test_groups_without_entries_are_one_entry_in_order() -> None:
    found = built(ENTRIES)
    assert [[each.name for each in one] for one in found.programs] == [["a", "b"]]
    assert found.sequence == ("step",)


def test_a_group_may_be_in_several_entries_in_any_order() -> None:
    entries = """
entries:
  last: {groups: [b, a], after: [mid]}
  mid: {groups: [a], after: [one]}
  one: {groups: [b]}
"""
    found = built(ENTRIES + entries)
    assert [[each.name for each in one] for one in found.programs] == [["b", "a"], ["a"], ["b"]]
    assert found.sequence == ("one", "mid", "last")


def test_what_other_devices_hold_is_asked_of_the_machine() -> None:
    plan = compiled()
    pairs = [("gpu0", "gpu1"), ("gpu1", "gpu0")]
    assert set(plan.variants[0].requires) == {
        Requirement(need, *pair) for need in (Need.PEER_READ, Need.PEER_WRITE) for pair in pairs
    }
    assert compiled(gpus=1).variants[0].requires == ()


# What they do


def compiled(text: str = SUM, **values: Any) -> graphc.Plan:
    path = Path("sum.yaml")
    path.write_text(text)
    return graphc.compile(path, kernels=KERNELS, cubins=False, **values)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def inputs(ranks: int, rows: int) -> list[np.ndarray[Any, Any]]:
    whole = np.arange(ranks * rows * 8, dtype=np.float32)
    return list(whole.reshape(ranks, rows, 8))


def outcome(plan: graphc.Plan, ranks: int, rows: int, seed: int | None = None) -> dict[str, Any]:
    graph = plan.instantiate("reference")
    graph.bind(x=inputs(ranks, rows))
    for entry in plan.sequence:
        graph.launch(entry=entry, seed=seed)
    graph.synchronize()
    names = [f"rank.{rank}/{name}" for rank in range(ranks) for name in ("all", "sums", "y")]
    return {name: np.array(graph[name]) for name in names}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"is_apart": True},
        {"pieces": 3},
        {"units": "device"},
        {"units": "device", "launch": "free", "is_apart": True, "pieces": 2},
        {"units": "rank", "gpus": 64},
    ],
)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_every_order_that_is_allowed_leaves_what_the_ranks_say(
    ranks: int, values: dict[str, Any]
) -> None:
    rows = 5
    x = inputs(ranks, rows)
    plan = compiled(ranks=ranks, rows=rows, **values)
    sums = np.stack([each.sum(0) for each in x])
    for seed in (None, 0, 1, 2):
        found = outcome(plan, ranks, rows, seed)
        for rank in range(ranks):
            assert np.array_equal(found[f"rank.{rank}/sums"], sums)
            assert np.array_equal(found[f"rank.{rank}/y"], ranks * sums)
        for rank in range(ranks):
            for row in range(rows):
                there = found[f"rank.{(rank + row) % ranks}/all"]
                assert np.array_equal(there[rank * rows + row], x[rank][row])


def test_a_fault_that_a_kernel_leaves_is_raised_once() -> None:
    graph = compiled(rows=8).instantiate("reference")
    graph.launch()
    with pytest.raises(UsageError, match=r"op 'rank\.0/spread': row 7 has no place"):
        graph.synchronize()
    graph.launch()
    with pytest.raises(UsageError, match=r"rank\.0/spread"):
        graph.synchronize()


def test_state_and_status_begin_as_zeros() -> None:
    graph = compiled().instantiate("reference")
    assert not graph["rank.1/sums"].any()
    assert not graph["rank.1/words"].any()


def test_entries_are_launched_by_name() -> None:
    graph = compiled(is_apart=True).instantiate("reference")
    assert graph.entries == ("step", "prepare")
    with pytest.raises(UsageError, match="no entry 'prepared': did you mean 'prepare'"):
        graph.launch(entry="prepared")
    with pytest.raises(UsageError, match="no entry 1: there are step, prepare"):
        graph.launch(entry=1)


def test_a_list_stands_for_the_buffers_of_all_ranks() -> None:
    graph = compiled(ranks=12).instantiate("reference")
    graph.bind(x=inputs(12, 4))
    assert graph["rank.10/x"][0, 0] == 320
    with pytest.raises(UsageError, match="'x' exists once a rank: expected a list of 12 arrays"):
        graph.bind(x=inputs(3, 4))
    with pytest.raises(UsageError, match="no buffer is named 'own'"):
        graph.bind(own=inputs(1, 4))
    with pytest.raises(UsageError, match=r"named 'x': there is one for each of 12: 'rank\.0/x'"):
        buffer_named(graph.program, "x")


def test_a_plan_keeps_its_entries(tmp_path: Path) -> None:
    plan = compiled(is_apart=True, units="device")
    plan.save("sum.graphc")
    again = graphc.load("sum.graphc")
    assert again == plan
    assert list(again.variants[0].schedules) == ["step", "prepare"]
    assert again.sequence == ("prepare", "step")


def test_ranks_that_are_no_ranks_are_refused() -> None:
    for values in ({"ranks": 0}, {"ranks": 65}):
        with pytest.raises(SpecError, match="'ranks' is"):
            built(**values)
    for count in (0, 65, 1.5):
        with pytest.raises(SpecError, match=r"ranks, not|whole number"):
            built(SUM.replace("{count: ranks}", f"{{count: {count}}}"))


CLASH = """
graphc: 1
name: clash
params: {pieces: {default: 1}}
ranks: {count: 3}
devices: {ranks: rank}
buffers:
  x: {dtype: f32, shape: [4, 8], role: input}
  all: {dtype: f32, shape: [12, 8], symmetric: true, role: state}
ops:
  - {name: spread, kernel: spread, args: {x: x, y: {peers: all}}, scalars: {rank: "TOLD"}}
schedule: {spread: {pieces: pieces}}
"""


@pytest.mark.parametrize("pieces", [1, 2])
def test_ranks_that_do_not_scatter_apart_are_found(pieces: int) -> None:
    for told, is_wrong in (("rank", False), ("0", True), ("min(rank, 1)", True)):
        graph = compiled(CLASH.replace("TOLD", told), pieces=pieces).instantiate("reference")
        graph.bind(x=[each + 1 for each in inputs(3, 4)])
        graph.launch()  # in program order the last one wins, as it would without a check
        graph.bind(x=[each + 99 for each in inputs(3, 4)])
        if not is_wrong:
            graph.launch(seed=1)
            continue
        with pytest.raises(SpecError, match=r"'rank\.\d/spread.*' both write byte \d+ of 'rank"):
            graph.launch(seed=1)


def test_scratch_of_an_iteration_is_that_of_the_same_iteration_on_every_rank() -> None:
    text = """
graphc: 1
name: layers
ranks: {count: 2}
devices: {ranks: rank}
buffers:
  x: {dtype: f32, shape: [4, 8], role: inout}
  mid: {dtype: f32, shape: [2, 8], symmetric: true}
  y: {dtype: f32, shape: [2, 8], role: output}
ops:
  - repeat: 2
    index: layer
    body:
      - {name: give, kernel: give, args: {x: x, y: {peers: mid, row: rank}}}
      - {name: fetch, kernel: fetch, args: {x: {peers: mid}, y: y}}
"""
    found = op(program(text), "rank.1/layer.1/give")
    touched = [each.region.buffer for each in found.accesses]
    assert touched == ["rank.1/x", "rank.0/layer.1/mid", "rank.1/layer.1/mid"]


@pytest.mark.parametrize(("row", "is_right"), [("rank", True), ("0", False), ("rank // 2", False)])
def test_ranks_that_write_the_same_bytes_are_refused(row: str, is_right: bool) -> None:
    text = SUM.replace("{peers: sums, row: rank}", f"{{peers: sums, row: {row}}}")
    if is_right:
        compiled(text)
        return
    with pytest.raises(SpecError, match="the ranks of 'give' conflict"):
        compiled(text)


LINES = SUM.strip().splitlines()


@given(st.integers(0, len(LINES) - 1), st.data())
def test_no_damage_to_a_spec_breaks_the_front_end(index: int, data: st.DataObject) -> None:
    line = LINES[index]
    start = data.draw(st.integers(0, len(line)))
    stop = data.draw(st.integers(start, min(len(line), start + 8)))
    put = data.draw(st.sampled_from(["", "x", "0", "=", "rank", "[]", "null", "-1", "true", ": {"]))
    damaged = [*LINES[:index], line[:start] + put + line[stop:], *LINES[index + 1 :]]
    with suppress(SpecError):
        built("\n".join(damaged))
