"""Specs become programs: values, names, repeats, used files, cuts, placement, flow."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphc.ir import Emit, Fill, Op, Program, Role, RowsKind, Transfer
from graphc.kernels.contract import Catalog
from graphc.resources import kernel_folders, route_folders, shipped
from graphc.routes import load_routes
from graphc.spec.build import Built, build
from graphc.spec.model import LayerSpec, load_spec, parse_spec
from graphc.text.diagnostics import SpecError
from graphc.text.load import parse_yaml

HERE = Path(__file__).parent
CATALOG = Catalog(kernel_folders([HERE / "kernels"]))
ROUTES = load_routes(route_folders())
HEAD = "graphc: 1\nname: small\ndevices: [one, two]\n"
CHAIN = (
    HEAD
    + """
params:
  tokens: {default: 8, min: 0, count: true}
  hidden: {default: 4, min: 1}
  layers: {default: 2, min: 0}
  pieces: {default: 2, min: 1}
  wire: {default: f16, choices: [f16, f32]}
  has_bias: {default: false}
presets: {wide: {hidden: 64, pieces: 3}}
cuts: {compute: {extent: tokens}}
buffers:
  state: {device: one, dtype: f32, shape: [tokens, hidden], role: inout}
  bias: {device: one, dtype: f32, shape: [hidden], role: weight, each: layer, if: has_bias}
  mid: {device: one, dtype: f32, shape: [tokens, hidden]}
  far: {device: two, dtype: f32, shape: [tokens, hidden]}
  back: {device: two, dtype: f32, shape: [tokens, hidden]}
ops:
  - repeat: layers
    index: layer
    body:
      - name: in
        kernel: scale
        device: one
        args: {x: state, y: mid, bias: bias, factor: layer + 1}
      - {name: over, transfer: {source: mid, target: far, wire: =wire}}
      - {name: work, kernel: scale, device: two, cut: compute, args: {x: far, y: back, factor: 0.5}}
      - {name: home, transfer: {source: back, target: state}}
schedule:
  cuts: {compute: [1/4, 1/4, 1/2]}
  in: {pieces: pieces}
  over: {route: host, pieces: pieces, after: "=['in'] if layer else []"}
"""
)


def built(
    text: str, schedule: str | None = None, preset: str | None = None, **values: Any
) -> Built:
    spec = parse_spec(parse_yaml(text, str(HERE / "files" / "spec.yaml")))
    return build(spec, values, CATALOG, ROUTES, preset=preset, schedule=schedule)


def program(text: str, **values: Any) -> Program:
    found = built(text, **values).program
    assert found is not None
    return found


def op(found: Program, name: str) -> Op:
    return next(each for each in found if each.name == name)


def codes(text: str, **values: Any) -> set[str]:
    with pytest.raises(SpecError) as caught:
        built(text, **values)
    return {each.code for each in caught.value.diagnostics}


def test_a_repeat_is_unrolled_and_its_scratch_exists_once_an_iteration() -> None:
    found = program(CHAIN)
    names = ["in", "over", "work", "home"]
    assert [each.name for each in found] == [f"layer.{i}/{n}" for i in range(2) for n in names]
    assert set(found.buffers) == {
        "state",
        *(f"layer.{i}/{name}" for i in range(2) for name in ("mid", "far", "back")),
    }
    assert op(found, "layer.1/in").work.scalars == {"factor": 2}  # type: ignore[union-attr]
    assert found.buffers["state"].role is Role.INOUT


def test_each_exists_once_an_iteration_with_its_role() -> None:
    found = program(CHAIN, has_bias=True)
    assert found.buffers["layer.1/bias"].role is Role.WEIGHT
    assert op(found, "layer.1/in")["bias"].region.buffer == "layer.1/bias"


def test_what_is_left_out_is_null_where_the_kernel_allows_it() -> None:
    assert [each.argument for each in op(program(CHAIN), "layer.0/in").accesses] == ["x", "y"]


def test_rows_that_follow_the_count_remember_it() -> None:
    found = program(CHAIN, tokens=6)
    assert (found.capacity, found.nominal, found.count_name) == (6, 6, "tokens")
    assert found.buffers["layer.0/mid"].per_count == 1
    assert op(found, "layer.0/work").axis.per_count == 1
    assert program(CHAIN, tokens=0).nominal == 1


def test_regions_are_whole_buffers() -> None:
    found = program(CHAIN)
    for each in found:
        for access in each.accesses:
            buffer = found.buffers[access.region.buffer]
            assert (access.region.start, access.region.stop) == (0, buffer.nbytes)


def test_a_cut_is_the_placement_of_all_its_ops() -> None:
    bounds = (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(1))
    assert op(program(CHAIN), "layer.1/work").placement.pieces == bounds


@given(st.integers(1, 300))
def test_pieces_are_equal_shares(count: int) -> None:
    bounds = op(program(CHAIN, pieces=count), "layer.0/in").placement.pieces
    assert bounds == tuple(Fraction(i, count) for i in range(count + 1))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_shares_may_be_unequal(weights: list[int]) -> None:
    total = sum(weights)
    shares = [f"{each}/{total}" for each in weights]
    found = program(CHAIN, **{"schedule.home.pieces": shares})
    bounds = op(found, "layer.0/home").placement.pieces
    assert bounds[-1] == 1
    assert [b - a for a, b in pairwise(bounds)] == [Fraction(each, total) for each in weights]


def test_a_transfer_knows_its_wire_its_route_and_its_pairs() -> None:
    over = op(program(CHAIN), "layer.0/over")
    assert over.work == Transfer("host", "f16")
    assert [each.argument for each in over.accesses] == ["source.0", "target.0"]
    assert over.device == "one"
    home = op(program(CHAIN), "layer.0/home").work
    assert home == Transfer("auto", None)
    small = program(
        HEAD
        + """
buffers:
  i: {device: one, dtype: i32, shape: [4], role: input}
  f: {device: one, dtype: f32, shape: [4, 2], role: input}
  j: {device: two, dtype: i32, shape: [4], role: output}
  g: {device: two, dtype: f32, shape: [4, 2], role: output}
ops:
  - {name: both, transfer: {pairs: [{source: i, target: j}, {source: f, target: g}]}}
"""
    )
    assert small.ops[0].work == Transfer("auto", None, is_small=True)
    assert len(small.ops[0].accesses) == 4


def test_after_names_ops_of_the_same_iteration() -> None:
    found = program(CHAIN)
    assert op(found, "layer.0/over").placement.after == ()
    assert op(found, "layer.1/over").placement.after == ("layer.1/in",)


def test_values_come_from_the_call_the_schedule_file_the_preset_the_default(tmp_path: Path) -> None:
    def pieces(**values: Any) -> int:
        found = built(CHAIN, **values).program
        assert found is not None
        return len(op(found, "layer.0/in").placement.pieces) - 1

    path = tmp_path / "other.yaml"
    path.write_text("params: {pieces: 5}\nin: {pieces: pieces}\ncuts: {compute: 2}\n")
    assert pieces() == 2
    assert pieces(preset="wide") == 3
    assert pieces(preset="wide", schedule=str(path)) == 5
    assert pieces(preset="wide", schedule=str(path), pieces=7) == 7
    assert pieces(pieces=7, **{"schedule.in.pieces": 9}) == 9
    assert pieces(pieces=7, **{"in.pieces": "pieces + 4"}) == 11
    other = built(CHAIN, schedule=str(path)).program
    assert other is not None
    assert len(op(other, "layer.0/work").placement.pieces) == 3


def test_the_schedules_own_values_are_settings() -> None:
    found = built(CHAIN, emit="nodes", max_streams=2, **{"schedule.memory": "tight"})
    assert found.settings.emit is Emit.NODES
    assert (found.settings.max_streams, found.settings.memory) == (2, "tight")
    assert built(CHAIN).settings.emit is Emit.CAPTURE
    assert codes(CHAIN, emit="grahp") == {"bad-value"}


def test_single_values_of_the_schedule_are_shown_where_they_came_from() -> None:
    with pytest.raises(SpecError) as caught:
        built(CHAIN, pieces=0, **{"schedule.over.route": "hots"})
    files = sorted(each.span.file for each in caught.value.diagnostics)
    assert files == ["--set pieces=0", "--set schedule.over.route=hots"]
    assert str(caught.value).startswith("--set pieces=0: error[bad-value]")


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"hidden": 0}, "bad-value"),
        ({"hidden": 1.5}, "bad-value"),
        ({"hidden": True}, "bad-value"),
        ({"wire": "f8"}, "bad-value"),
        ({"hiden": 4}, "unknown-param"),
        ({"schedule.inn.pieces": 2}, "unknown-op"),
        ({"schedule.in.piecs": 2}, "unknown-field"),
        ({"schedule.in.pieces": [0.5, 0.4]}, "bad-pieces"),
        ({"schedule.in.pieces": ["1/2", "1/2", 0]}, "bad-pieces"),
        ({"schedule.in.pieces": "pieces - 2"}, "bad-pieces"),
        ({"schedule.work.pieces": 2}, "bad-pieces"),
        ({"schedule.in.route": "host"}, "bad-route"),
        ({"schedule.in.stream": {"down": "a"}}, "bad-stream"),
        ({"schedule.over.stream": "a"}, "bad-stream"),
        ({"schedule.over.stream.dwn": "a"}, "bad-stream"),
        ({"schedule.over.blocks": -1}, "bad-value"),
        ({"schedule.in.blocks": -1}, "bad-value"),
        ({"schedule.in.after": ["nothing"]}, "unknown-op"),
        ({"schedule.cuts.compte": 2}, "unknown-cut"),
        ({"schedule.units": "rank"}, "bad-value"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], code: str) -> None:
    assert codes(CHAIN, **values) == {code}


def test_a_placement_says_stream_blocks_and_priority() -> None:
    values = {
        "schedule.in.stream": "main",
        "schedule.in.blocks": "2 * 8",
        "schedule.in.priority": -1,
        "schedule.over.stream": {"down": "lane"},
    }
    found = program(CHAIN, **values)
    placement = op(found, "layer.0/in").placement
    assert (placement.stream, placement.blocks, placement.priority) == ("main", 16, -1)
    work = op(found, "layer.0/over").work
    assert isinstance(work, Transfer)
    assert work.streams == {"down": "lane"}


def test_streams_of_both_devices_are_told_apart() -> None:
    assert codes(CHAIN, **{"in.stream": "s", "work.stream": "s"}) == {"bad-stream"}
    assert codes(CHAIN, **{"over.stream": {"down": "s", "up": "s"}}) == {"bad-stream"}


def test_params_may_hang_on_each_other() -> None:
    text = (
        HEAD
        + """
params:
  ranks: {default: 2, min: 1}
  experts: {default: 8, multiple_of: =ranks, max: 4 * ranks}
let: {local: experts // ranks, both: local * 2}
buffers: {y: {device: one, dtype: f32, shape: [local, both], role: output}}
ops: [{name: zero, fill: {target: y, value: local}}]
"""
    )
    found = program(text)
    assert found.buffers["y"].shape == (4, 8)
    assert found.ops[0].work == Fill(4)
    assert codes(text, experts=7) == {"bad-value"}
    assert codes(text, experts=10) == {"bad-value"}


def test_a_used_file_has_names_of_its_own() -> None:
    text = (
        HEAD
        + """
buffers:
  a: {device: one, dtype: f32, shape: [4, 8], role: input}
  b: {device: one, dtype: f32, shape: [4, 8]}
  c: {device: one, dtype: f32, shape: [4, 8], role: output}
ops:
  - repeat: 2
    index: i
    body:
      - {name: first, use: experts.yaml, args: {x: a, y: b, where: one, strength: 2}}
      - {name: second, use: experts.yaml, args: {x: b, y: c, where: one, strength: 3}}
schedule:
  first/up: {pieces: 2}
  second/down: {after: [up, first/down]}
"""
    )
    found = program(text)
    assert [each.name for each in found][:4] == [
        f"i.0/{use}/{name}" for use in ("first", "second") for name in ("up", "down")
    ]
    assert op(found, "i.1/first/up")["y"].region.buffer == "i.1/first/mid"
    assert op(found, "i.1/second/up")["x"].region.buffer == "i.1/b"
    assert len(op(found, "i.0/first/up").placement.pieces) == 3
    assert op(found, "i.0/second/down").placement.after == ("i.0/second/up", "i.0/first/down")
    assert op(found, "i.0/first/up").span.file.endswith("experts.yaml")


def test_mistakes_in_a_used_file_say_where_it_is_used() -> None:
    text = (
        HEAD
        + """
buffers:
  a: {device: one, dtype: f32, shape: [4, 8], role: input}
  c: {device: one, dtype: i32, shape: [4, 8], role: output}
ops:
  - {name: first, use: experts.yaml, args: {x: a, y: c, where: one, strenth: 2}}
  - {name: other, use: experts.yaml, args: {x: a, y: c, where: one, strength: 2}}
  - {name: third, use: nowhere.yaml}
"""
    )
    with pytest.raises(SpecError) as caught:
        built(text)
    found = {each.code: each for each in caught.value.diagnostics}
    assert set(found) == {"unknown-argument", "missing-argument", "wrong-dtype", "missing-file"}
    assert found["wrong-dtype"].span.file.endswith("experts.yaml")
    assert found["wrong-dtype"].notes[-1].message == "used here"
    assert found["wrong-dtype"].notes[-1].span.line == 10


def test_blocks_are_the_bounds_of_a_cut_with_its_rows() -> None:
    text = (
        HEAD
        + """
params: {tokens: {default: 6, count: true}, k: {default: 2}}
cuts: {compute: {extent: tokens}}
buffers:
  x: {device: one, dtype: f32, shape: [tokens * k, 8], role: input}
  s: {device: one, dtype: i32, shape: [tokens, k], role: input}
  y: {device: one, dtype: f32, shape: [tokens, 8], role: inout}
ops:
  - {name: sum, kernel: pick, device: one, args: {x: {buffer: x, blocks: compute}, slots: s, y: y}}
schedule: {cuts: {compute: 3}, sum: {pieces: 4}}
"""
    )
    rows = program(text).ops[0]["x"].rows
    assert rows.kind is RowsKind.BLOCKS
    assert rows.blocks == tuple(Fraction(i, 3) for i in range(4))
    assert rows.factor == 2
    assert codes(text.replace("extent: tokens", "extent: 6")) == {"wrong-cut"}
    assert codes(text.replace("extent: tokens", "extent: 5")) == {"wrong-cut"}


def test_rows_of_pieces_are_as_many_as_the_pieces() -> None:
    text = (
        HEAD
        + """
cuts: {compute: {extent: 4}}
buffers:
  x: {device: one, dtype: i32, shape: [4, 2], role: input}
  w: {device: one, dtype: i32, shape: [3], role: input}
  o: {device: one, dtype: i32, shape: [compute.count, 4], role: output}
  s: {device: one, dtype: i32, shape: [8], role: output}
ops:
  - name: note
    kernel: mark
    device: one
    cut: compute
    args: {x: x, widths: w, offsets: o, slots: s, first: 0}
schedule: {cuts: {compute: 4}}
"""
    )
    assert program(text).buffers["o"].shape == (4, 4)
    assert codes(text.replace("[compute.count, 4]", "[3, 4]")) == {"wrong-shape"}


def test_an_overlay_names_the_buffer_that_owns_the_bytes() -> None:
    text = (
        HEAD
        + """
buffers:
  base: {device: one, dtype: u8, shape: [256]}
  low: {device: one, dtype: f32, shape: [4, 8], at: {buffer: base}}
  high: {device: one, dtype: f32, shape: [4, 8], at: {buffer: base, offset: 64 * 2}}
  top: {device: one, dtype: f32, shape: [2, 8], at: {buffer: high, offset: 64}}
  x: {device: one, dtype: f32, shape: [4, 8], role: input}
  y: {device: one, dtype: f32, shape: [2, 8], role: output}
ops:
  - {name: a, kernel: scale, device: one, args: {x: x, y: high, factor: 1}}
  - {name: b, kernel: scale, device: one, args: {x: top, y: y, factor: 1}}
"""
    )
    found = program(text)
    assert found.buffers["high"].overlay == ("base", 128)
    assert found.buffers["top"].overlay == ("base", 192)
    assert "base" in found.buffers
    # Half of what is read has been written.
    assert codes(text.replace("x: top, y: y", "x: low, y: x")) >= {"read-before-write"}


def test_an_overlay_that_nothing_touches_does_not_keep_its_base() -> None:
    """The base is in the repeat: a buffer for each iteration, and none outside."""
    text = (
        HEAD
        + """
buffers:
  x: {device: one, dtype: f32, shape: [4, 8], role: input}
  m: {device: one, dtype: f32, shape: [4, 8]}
  part: {device: one, dtype: f32, shape: [2, 8], at: {buffer: m, offset: 64}}
  y: {device: one, dtype: f32, shape: [4, 8], role: output}
ops:
  - repeat: 2
    index: i
    body:
      - {name: there, kernel: scale, device: one, args: {x: x, y: m, factor: 1}}
      - {name: back, kernel: scale, device: one, args: {x: m, y: y, factor: 1}}
"""
    )
    found = program(text)
    assert {*found.buffers} == {"x", "y", "i.0/m", "i.1/m"}
    assert {each.region.buffer for op in found for each in op.accesses} == {*found.buffers}


def test_scratch_written_once_outside_may_be_read_in_every_iteration() -> None:
    text = (
        HEAD
        + """
buffers:
  x: {device: one, dtype: f32, shape: [4, 8], role: input}
  m: {device: one, dtype: f32, shape: [4, 8]}
  y: {device: one, dtype: f32, shape: [4, 8], role: output}
ops:
  - {name: once, kernel: scale, device: one, args: {x: x, y: m, factor: 1}}
  - repeat: 2
    index: i
    body:
      - {name: often, kernel: scale, device: one, args: {x: m, y: y, factor: 1}}
"""
    )
    assert "m" in program(text).buffers


def test_an_op_and_a_buffer_may_be_left_out() -> None:
    text = (
        HEAD
        + """
params: {narrow: {default: false}}
buffers:
  x: {device: one, dtype: f32, shape: [4, 8], role: input}
  h: {device: one, dtype: f16, shape: [4, 8], if: narrow}
  y: {device: one, dtype: f32, shape: [4, 8], role: output}
ops:
  - {name: down, kernel: scale, device: one, args: {x: x, y: h, factor: 1}, if: narrow}
  - {name: up, kernel: scale, device: one, args: {x: "='h' if narrow else 'x'", y: y, factor: 1}}
schedule: {down: {pieces: 2}}
"""
    )
    assert [each.name for each in program(text)] == ["up"]
    assert [each.name for each in program(text, narrow=True)] == ["down", "up"]
    assert "h" not in program(text).buffers


def test_an_extern_op_says_what_it_touches() -> None:
    text = (
        HEAD
        + """
params: {n: {default: 4, count: true}}
buffers:
  x: {device: one, dtype: f32, shape: [n, 8], role: input}
  y: {device: one, dtype: f32, shape: [n, 8], role: output}
ops:
  - name: norm
    device: one
    extern:
      function: mylib.ops:norm
      reference: mylib.ops:norm_reference
      axis: n
      args:
        x: {buffer: x, access: read, rows: split}
        y: {buffer: y, access: write, rows: split}
      scalars: {eps: 0.001}
schedule: {norm: {pieces: 2}}
"""
    )
    found = program(text).ops[0]
    assert found.axis.per_count == 1
    assert found["y"].rows.kind is RowsKind.SPLIT
    assert codes(text.replace("access: write, rows: split", "access: write")) == {"cannot-cut"}
    assert codes(text.replace("mylib.ops:norm\n", "mylib.ops.norm\n")) == {"bad-value"}


def test_mistakes_of_all_stages_are_named_in_one_run() -> None:
    text = CHAIN.replace("hidden: {default: 4", "hidden: {defalt: on, default: 4")
    text = text.replace(
        "dtype: f32, shape: [tokens, hidden]}\n  far", "dtype: f23, shape: [tokens]}\n  far"
    )
    text = text.replace("kernel: scale, device: two", "kernel: scael, device: two")
    text = text.replace("route: host,", "route: hots,")
    found = codes(text)
    assert found >= {"ambiguous-value", "unknown-field", "unknown-dtype", "unknown-kernel"}
    assert "unknown-name" not in found


def test_what_follows_from_a_broken_entry_is_not_said_again() -> None:
    text = CHAIN.replace("mid: {device: one, dtype: f32", "mid: {device: one, dtype: [f32]")
    assert codes(text) == {"bad-value"}
    assert codes(CHAIN.replace("kernel: scale\n", "kernal: scale\n")) == {"bad-op"}
    assert codes(CHAIN.replace("params:", "parms:")) == {"unknown-field"}
    assert codes(CHAIN.replace("buffers:", "bufers:")) == {"unknown-field"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("pieces:       {default: 8,", "pieces:       {default: 0,"),
        ("top_k:        {default: 10,", "top_k:        {default: 0,"),
        ("hidden:       {default: 2560,", "hidden:       {default: 2561,"),
        ("experts:      {default: 512,", "experts:      {default: 5120,"),
        ("layers:       {default: 1,", "layers:       {default: 0,"),
        ("tokens:       {default: 4096, min: 0", "tokens:       {default: 4096, min: 5000"),
    ],
)
def test_of_a_faulty_param_only_the_cause_is_said(right: str, wrong: str, tmp_path: Path) -> None:
    """However many lines of the schedule, shapes and repeats hang on it."""
    text = (shipped("specs") / "moe_peer.yaml").read_text()
    assert right in text
    (tmp_path / "moe.yaml").write_text(text.replace(right, wrong))
    with pytest.raises(SpecError) as caught:
        build(load_spec(tmp_path / "moe.yaml"), {}, Catalog(kernel_folders()), ROUTES)
    assert [each.code for each in caught.value.diagnostics] == ["bad-value"]


LINES = CHAIN.splitlines()


@given(st.integers(0, len(LINES) - 1), st.data())
def test_no_damage_to_a_spec_breaks_the_front_end(index: int, data: st.DataObject) -> None:
    """Whatever a slip of the hand does to a line, the answer is a program or a SpecError."""
    line = LINES[index]
    at = data.draw(st.integers(0, len(line)))
    width = data.draw(st.integers(0, 6))
    new = data.draw(st.text("{}[]:,=*/#-&!|'\"x01 \t", max_size=3))
    text = "\n".join([*LINES[:index], line[:at] + new + line[at + width :], *LINES[index + 1 :]])
    try:
        found = built(text)
    except SpecError as problem:
        for each in problem.diagnostics:
            assert each.message
            assert each.code
    else:
        assert found.program is not None


def test_the_value_of_a_preset_may_follow_from_the_params_above() -> None:
    text = CHAIN.replace("pieces: 3}}", "pieces: =hidden // layers}}")
    for layers in (2, 4):
        assert built(text, preset="wide", layers=layers).params["pieces"] == 64 // layers
    wrong = text.replace("=hidden // layers", "=hiden")
    assert codes(wrong, preset="wide") == {"unknown-name"}


@pytest.mark.parametrize(
    "path", sorted(shipped("specs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_layer_builds_with_every_preset(path: Path) -> None:
    spec = load_spec(path)
    assert isinstance(spec, LayerSpec)
    catalog = Catalog(kernel_folders())
    for preset in (None, *spec.presets):
        found = build(spec, {}, catalog, ROUTES, preset=preset).program
        assert found is not None
        assert all(math.prod(each.shape) >= 0 for each in found.buffers.values())
        for each in found.ops:
            assert each.span.line > 0


PAIRS = (
    HEAD
    + """
buffers:
  a: {device: one, dtype: f32, shape: [4], role: input}
  b: {device: one, dtype: f32, shape: [4], role: input}
  y: {device: two, dtype: f32, shape: [8], role: inout}
  low: {device: two, dtype: f32, shape: [4], at: {buffer: y, offset: 0}}
  next: {device: two, dtype: f32, shape: [4], at: {buffer: y, offset: 16}}
  mid: {device: two, dtype: f32, shape: [4], at: {buffer: y, offset: 8}}
ops:
  - {name: over, transfer: {pairs: [{source: a, target: low}, {source: %s, target: %s}]}}
"""
)


@pytest.mark.parametrize(
    ("source", "target", "what"),
    [
        ("a", "next", None),
        ("b", "next", None),
        ("b", "mid", "'low' and 'mid' share bytes, and one is a target"),
        ("b", "low", "'low' is the target of two pairs"),
    ],
)
def test_pairs_arrive_apart(source: str, target: str, what: str | None) -> None:
    text = PAIRS % (source, target)
    if what is None:
        assert built(text).program is not None
        return
    with pytest.raises(SpecError) as caught:
        built(text)
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("aliased-argument", what)


@pytest.mark.parametrize("one", [3, 32767, 32769, 99999])
def test_shares_are_counted_in_32_bits(one: int) -> None:
    """Two halves, cut into parts with nothing in common: kernels are told in whole numbers."""
    two = 32768
    shares = [text for n in (one, two) for text in (f"1/{2 * n}", f"{n - 1}/{2 * n}")]
    values = {"schedule.home.pieces": shares}
    if math.lcm(2 * one, 2 * two) < 2**31:
        assert op(program(CHAIN, **values), "layer.0/home").placement.pieces[-1] == 1
    else:
        assert codes(CHAIN, **values) == {"bad-pieces"}
