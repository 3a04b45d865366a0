"""Staging with fewer slots than pieces: the laws hold, the bits stay, the memory shrinks."""

from __future__ import annotations

import ctypes
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver
from oracles import closure, hazard_pairs, ordered_pairs
from small_plan import rows
from test_laws import objections

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.backends.reference import ReferenceGraph
from graphc.draw.resources import resources
from graphc.ir import MAPPED, Emit, Program, RowsKind
from graphc.kernels.compile import compile_image
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.resources import shipped
from graphc.text.diagnostics import SpecError
from graphc.verify import verify

RINGS = {
    "host": ("wire",),
    "host_copy": ("near", "wire", "far"),
    "host_push": ("wire",),
    "p2p": ("near", "far"),
    "p2p_read": ("near",),
    "p2p_write": ("far",),
}
TOKENS = 37
COUNTS = (TOKENS, 23, 0, 1, TOKENS)
SPEC = """graphc: 1
name: moved
params:
  tokens: {default: 37, min: 0, count: true}
  dtype: {default: f32}
  wire: {default: f32}
  route: {default: ring}
  emit: {default: capture}
devices: [primary, peer]
buffers:
  x: {device: primary, dtype: =dtype, shape: [tokens, 8], role: input}
  y: {device: peer, dtype: =dtype, shape: [tokens, 8], role: output}
ops:
  - {name: move, transfer: {source: x, target: y, wire: =wire}}
schedule:
  emit: =emit
  move: {route: =route, pieces: 5}
"""
X = np.random.default_rng(7).standard_normal((TOKENS, 8), dtype=np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Each route again as ``ring_NAME``, with two slots; and the spec."""
    (tmp_path / "routes").mkdir()
    for name, staged in RINGS.items():
        text = (shipped("specs") / "routes" / f"{name}.yaml").read_text()
        text = text.replace(f"name: {name}", f"name: ring_{name}", 1)
        for each in staged:
            start = text.index(f"  {each}:")
            stop = text.index("}", start)
            text = f"{text[:stop]}, slots: 2{text[stop:]}"
        (tmp_path / "routes" / f"ring_{name}.yaml").write_text(text)
    (tmp_path / "moved.yaml").write_text(SPEC)
    return tmp_path


def moved(folder: Path, route: str, **values: Any) -> graphc.Plan:
    values |= {"routes": [folder / "routes"], "schedule.move.pieces": values.pop("pieces", 5)}
    return graphc.compile(folder / "moved.yaml", cubins=False, route=route, **values)


def launched(plan: graphc.Plan, order: int | None) -> list[bytes]:
    """The rows in use after each launch, scratch poisoned before."""
    graph = ReferenceGraph(plan)
    found = []
    for launch, count in enumerate(COUNTS):
        graph.poison()
        graph["x"][...] = X * (launch + 1)
        graph.launch(count=count, seed=order)
        found.append(graph["y"][:count].tobytes())
    return found


@pytest.mark.parametrize("pieces", [1, 2, 3, 16, TOKENS + 5, ["1/16", "1/2", "1/4", "3/16"]])
@pytest.mark.parametrize("wire", ["f32", "f16"])
@pytest.mark.parametrize("route", RINGS)
def test_a_ring_never_changes_a_bit(folder: Path, route: str, wire: str, pieces: Any) -> None:
    expected = launched(moved(folder, route, pieces=1, wire=wire), None)
    for emit in ("capture", "nodes"):
        plan = moved(folder, f"ring_{route}", pieces=pieces, wire=wire, emit=emit)
        for order in (None, 1, 2):
            assert launched(plan, order) == expected


def split(folder: Path, route: str, **values: Any) -> Program:
    """The program in pieces."""
    kept: list[Any] = []

    def keep(name: str, stage: object) -> None:
        if name == "split_pieces":
            kept.append(stage)

    values |= {"routes": [folder / "routes"], "schedule.move.pieces": values.pop("pieces", 5)}
    graphc.check(folder / "moved.yaml", observe=keep, route=route, **values)
    (program,) = kept
    assert isinstance(program, Program)
    return program


@pytest.mark.parametrize("wire", ["f32", "f16"])
@pytest.mark.parametrize("route", RINGS)
def test_the_laws_hold_for_rings(folder: Path, route: str, wire: str) -> None:
    program = split(folder, f"ring_{route}", pieces=5, wire=wire)
    behind = closure([op.name for op in program], hazard_pairs(program))
    assert ordered_pairs(infer_dependencies(program), program) == {
        (one, two) for one, others in behind.items() for two in others
    }
    assert objections(program, "concurrent", 4) or len({op.step for op in program}) == 1


def test_a_slot_is_written_again_only_when_it_was_read(folder: Path) -> None:
    program = split(folder, "ring_host", pieces=5)
    assert [op.name for op in program][:4] == [
        "move/down/piece.0",
        "move/up/piece.0",
        "move/down/piece.1",
        "move/up/piece.1",
    ]
    regions = [op["target"].region for op in program if op.step == "move/down"]
    assert regions[0] == regions[2] == regions[4] != regions[1] == regions[3]
    ordered = ordered_pairs(infer_dependencies(program), program)
    assert ("move/up/piece.0", "move/down/piece.2") in ordered
    assert ("move/up/piece.0", "move/down/piece.1") not in ordered


@pytest.mark.parametrize(
    ("pieces", "slot_rows"), [(3, 13), (8, 5), (TOKENS + 5, 1), (["1/8", "1/2", "3/8"], 19)]
)
def test_the_slots_hold_the_largest_piece_at_any_count(
    folder: Path, pieces: Any, slot_rows: int
) -> None:
    """8 pieces of 37 rows have at most 5; the count may be any."""
    program = split(folder, "ring_host", pieces=pieces)
    wire = program.buffers["move/wire"]
    assert (wire.shape, wire.per_count) == ((2 * slot_rows, 8), 0)
    for op in program:
        for count in range(TOKENS + 1):
            lo, hi = op.piece.bounds(op.axis, count)
            assert hi - lo <= slot_rows


def test_as_many_slots_as_pieces_are_all(folder: Path) -> None:
    program = split(folder, "ring_host", pieces=2)
    assert program.buffers["move/wire"].per_count == 1
    assert all(each.rows.kind is RowsKind.SPLIT for op in program for each in op.accesses)


def test_a_capacity_of_zero_keeps_the_order_of_a_ring(folder: Path) -> None:
    program = split(folder, "ring_host", pieces=3, tokens=0)
    ordered = ordered_pairs(infer_dependencies(program), program)
    assert ("move/up/piece.0", "move/down/piece.2") in ordered


def test_the_peer_layer_maps_less_memory(folder: Path) -> None:
    """Two slots of an eighth, for each of the two bulk transfers, and no bit differs."""
    spec = (shipped("specs") / "moe_peer.yaml").read_text()
    (folder / "moe.yaml").write_text(spec.replace("p2p, p2p_read", "ring_host, p2p, p2p_read"))
    values: dict[str, Any] = {"preset": "small", "cubins": False, "pieces": 8}
    values["routes"] = [folder / "routes"]
    spec_file = folder / "moe.yaml"
    ring = graphc.compile(spec_file, route="ring_host", **values)
    whole = graphc.compile(spec_file, route="host", **values)
    verify(ring.variants[0].schedule, order="edges")
    mapped = [resources(each.variants[0].schedule).nbytes[MAPPED] for each in (ring, whole)]
    assert mapped[0] < mapped[1] / 3


def test_a_plan_with_a_ring_is_read_as_it_was_written(folder: Path) -> None:
    plan = moved(folder, "ring_host")
    plan.save(folder / "ring.graphc")
    again = graphc.load(folder / "ring.graphc")
    for one, two in zip(
        *(each.variants[0].schedule.program for each in (plan, again)), strict=True
    ):
        assert one.accesses == two.accesses
        assert repr(one.work) == repr(two.work)  # 0 equals false, but is another option
    assert launched(again, None) == launched(plan, None)


@pytest.mark.parametrize("wire", ["f32", "f16"])
def test_the_kernels_of_rings_compile(folder: Path, wire: str) -> None:
    """x in a ring, y in one, and both."""
    for route in ("ring_host_copy", "ring_host_push"):
        plan = moved(folder, route, wire=wire)
        for image in plan.images.values():
            assert compile_image(image, "sm_80").startswith(b"\x7fELF")
            assert ("from = x;" in image.source) or ("to = y;" in image.source)


# The calls of the CUDA backend


def convert(x: int, y: int, *piece: int) -> None:
    """The up step's kernel: x, in a ring, begins at the piece's first row."""
    lo, hi = rows(*piece[:5])
    ctypes.memmove(y + lo * 32, x, (hi - lo) * 32)


@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("route", ["ring_host", "ring_host_copy"])
def test_copies_and_kernels_are_given_the_slot(folder: Path, route: str, emit: Emit) -> None:
    plan = moved(folder, route, emit=emit.value)
    cubin = {"sm_90a": b64encode(b"x").decode()}
    images = {key: replace(each, cubins=cubin) for key, each in plan.images.items()}
    driver = RecordingDriver(kernels={"convert": convert})
    with CudaGraph(replace(plan, images=images), driver=driver) as graph:
        graph.bind(x=X)
        for count in (TOKENS, 7, 0, 23):
            graph["y"].write(np.zeros_like(X))
            graph.poison()
            graph.launch(count=count)
            assert np.array_equal(graph["y"].numpy()[:count], X[:count])
            assert not graph["y"].numpy()[count:].any()
    assert not driver.leaks()


# What is refused


@pytest.mark.parametrize(
    ("right", "wrong", "code"),
    [
        ("slots: 2", "slots: 0", "bad-value"),
        ("slots: 2", "slots: some", "bad-value"),
        ("slots: 2", "slots: true", "bad-value"),
    ],
)
def test_slots_are_all_or_a_number(folder: Path, right: str, wrong: str, code: str) -> None:
    path = folder / "routes" / "ring_host.yaml"
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(SpecError, match="expected all, or a number of slots") as caught:
        split(folder, "ring_host")
    assert [each.code for each in caught.value.diagnostics] == [code]


def test_a_kernel_that_knows_no_ring_is_given_none(folder: Path) -> None:
    text = (shipped("templates") / "convert.cu.j2").read_text()
    (folder / "mine.cu.j2").write_text(
        text.replace("name: convert", "name: mine").replace(" ring: ring_x,", "")
    )
    path = folder / "routes" / "ring_host.yaml"
    path.write_text(
        path.read_text().replace("{name: up, kernel: convert", "{name: up, kernel: mine")
    )
    with pytest.raises(SpecError, match="'x' of kernel 'mine' cannot be in a ring") as caught:
        graphc.check(
            folder / "moved.yaml", routes=[folder / "routes"], kernels=[folder], route="ring_host"
        )
    (found,) = caught.value.diagnostics
    assert Path(found.span.file) == path
    assert found.notes[-1].message == "used here"
    assert Path(found.notes[-1].span.file) == folder / "moved.yaml"


def test_the_option_of_a_ring_is_not_for_specs(folder: Path) -> None:
    call = "kernel: convert, device: primary, args: {x: x, y: y}, options: {ring_x: true}"
    spec = SPEC.replace("transfer: {source: x, target: y, wire: =wire}", call)
    spec = spec.replace("route: =route, ", "").replace("device: peer", "device: primary")
    (folder / "moved.yaml").write_text(spec)
    with pytest.raises(SpecError, match="is set by routes with a ring, not here"):
        graphc.check(folder / "moved.yaml")
