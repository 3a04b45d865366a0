"""What the steps of a route may do: seen when a transfer goes by it, said in the route's file."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphc
from graphc.resources import shipped
from graphc.text.diagnostics import Diagnostic, SpecError

SPEC = """graphc: 1
name: moved
devices: [primary, peer]
buffers:
  x: {device: primary, dtype: f32, shape: [12, 8], role: input}
  y: {device: peer, dtype: f32, shape: [12, 8], role: output}
ops:
  - {name: move, transfer: {source: x, target: y, wire: f16}}
schedule:
  move: {route: mine, pieces: 3}
"""
HEAD = "graphc_route: 1\nname: mine\ndoc: One's own.\n"


def mistake(folder: Path, steps: str, *, requires: str = "[]", staging: str = "{}") -> Diagnostic:
    """What is said of a route."""
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "routes").mkdir()
    route = folder / "routes" / "mine.yaml"
    route.write_text(f"{HEAD}requires: {requires}\nstaging: {staging}\nsteps:\n{steps}\n")
    with pytest.raises(SpecError) as caught:
        graphc.check(folder / "spec.yaml", routes=[folder / "routes"], kernels=[folder])
    (found,) = caught.value.diagnostics
    assert Path(found.span.file) == route
    assert (found.notes[-1].message, Path(found.notes[-1].span.file).name) == (
        "used here",
        "spec.yaml",
    )
    return found


def at(found: Diagnostic) -> str:
    """The text that a diagnostic points at."""
    line = Path(found.span.file).read_text().splitlines()[found.span.line - 1]
    return line[found.span.column - 1 :][: found.span.length]


def test_a_copy_keeps_the_dtype(tmp_path: Path) -> None:
    found = mistake(
        tmp_path,
        "  - {name: down, copy: [source, wire], on: source}\n"
        "  - {name: up, kernel: convert, args: {x: wire, y: target}, on: target}",
        staging="{wire: {memory: mapped, dtype: =wire}}",
    )
    assert found.code == "bad-route"
    assert "'x' is f32, 'move/wire' is f16" in found.message
    assert at(found).startswith("[source")


@pytest.mark.parametrize(
    ("step", "need", "place"),
    [
        ("copy: [source, target], on: source", "peer_copy", "target"),
        ("copy: [source, target], on: target", "peer_copy", "source"),
        ("kernel: convert, args: {x: source, y: target}, on: source", "peer_write", "target"),
        ("kernel: convert, args: {x: source, y: target}, on: target", "peer_read", "source"),
    ],
)
def test_what_a_step_needs_is_required(tmp_path: Path, step: str, need: str, place: str) -> None:
    other = "[peer_read]" if need == "peer_copy" else "[peer_copy]"
    found = mistake(tmp_path, f"  - {{name: move, {step}}}", requires=other)
    assert f"the route does not require {need}" in found.message
    assert found.hint == f"add {need} to requires"
    assert at(found) == place
    route = tmp_path / "routes" / "mine.yaml"
    for right in (f"[{need}]", "[same_gpu]"):
        route.write_text(route.read_text().replace(f"requires: {other}", f"requires: {right}"))
        other = right
        graphc.check(tmp_path / "spec.yaml", routes=[tmp_path / "routes"])


def test_bytes_travel_from_source_to_target_only(tmp_path: Path) -> None:
    found = mistake(
        tmp_path,
        "  - {name: n, kernel: convert, args: {x: source, y: far}, on: source}\n"
        "  - {name: m, kernel: convert, args: {x: far, y: target}, on: source}",
        requires="[peer_write, peer_read, peer_copy]",
        staging="{far: {memory: device, at: target, dtype: f32}}",
    )
    assert "reads memory of the target, which nothing that a route can require" in found.message
    assert at(found) == "far"


def test_staging_that_is_left_out_is_used_by_no_step(tmp_path: Path) -> None:
    found = mistake(
        tmp_path,
        "  - {name: n, kernel: convert, args: {x: source, y: near}, on: source}",
        staging="{near: {memory: device, at: source, dtype: f32, when: source.dtype == wire}}",
    )
    assert "'near' is left out here" in found.message


def test_a_kernel_that_does_not_go_by_rows_is_not_cut(tmp_path: Path) -> None:
    text = (shipped("templates") / "convert.cu.j2").read_text()
    text = text.replace("name: convert", "name: mine")
    text = text.replace("write, rows: split, ring: ring_y", "write, rows: all")
    (tmp_path / "mine.cu.j2").write_text(text)
    step = "{name: m, kernel: mine, args: {x: source, y: target}, on: target}"
    found = mistake(tmp_path, f"  - {step}", requires="[peer_read]")
    assert found.code == "cannot-cut"
    assert at(found) == "mine"


@pytest.mark.parametrize(
    ("step", "code", "place"),
    [
        ("kernel: convrt, args: {x: source, y: target}", "unknown-kernel", "convrt"),
        ("kernel: convert, args: {z: source, x: source, y: target}", "unknown-argument", "source"),
        ("kernel: convert, args: {x: source}", "missing-argument", "convert"),
        ("kernel: convert, args: {x: =source.shape, y: target}", "bad-expression", None),
    ],
)
def test_mistakes_of_a_step_are_shown_in_the_routes_file(
    tmp_path: Path, step: str, code: str, place: str | None
) -> None:
    found = mistake(tmp_path, f"  - {{name: m, {step}, on: target}}", requires="[peer_read]")
    assert found.code == code
    assert place is None or at(found) == place
