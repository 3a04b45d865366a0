"""Routes as files: what they may say, and what their expressions give."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphc.plan import Need
from graphc.resources import route_folders
from graphc.routes import Traveller, load_route, load_routes
from graphc.text.diagnostics import SpecError

TEXT = """graphc_route: 1
name: mine
doc: A route of one's own.
requires: [peer_copy]
prefer: 50
small: p2p_write
staging:
  near: {memory: device, at: source, dtype: =wire, when: source.dtype != wire}
  wire: {memory: mapped, dtype: =wire}
steps:
  - {name: narrow, kernel: convert, args: {x: source, y: near}, on: source, when: near != null}
  - {name: move, copy: ["=near if near else source", wire], on: source}
  - {name: up, kernel: convert, args: {x: wire, y: target}, on: target}
"""


def test_a_user_adds_a_route_by_adding_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT)
    routes = load_routes(route_folders([tmp_path]))
    assert routes["mine"].requires == [Need.PEER_COPY]
    assert routes["mine"].steps[1].arguments == {
        "source": "=near if near else source",
        "target": "wire",
    }
    assert {"host", "host_copy", "host_push", "p2p", "p2p_read", "p2p_write", "local"} < set(routes)


def test_an_own_route_stands_for_a_shipped_one_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(TEXT.replace("name: mine", "name: host", 1))
    assert load_routes(route_folders([tmp_path]))["host"].prefer == 50


def test_expressions_see_the_ends_the_staging_and_the_wire(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT)
    route = load_route(tmp_path / "mine.yaml")
    ends: dict[str, Traveller | None] = {
        "source": Traveller("a", "f32"),
        "target": Traveller("b", "f32"),
        "near": None,
        "wire": Traveller("a/wire", "f16"),
    }
    assert route.holds(route.staging["near"].when, ends, wire="f16")
    assert not route.holds(route.staging["near"].when, ends, wire="f32")
    assert not route.holds(route.steps[0].when, ends, wire="f16")
    assert route.name_of("=near if near else source", ends, wire="f16") == "a"
    assert route.name_of("wire", ends, wire="f16") == "wire"
    assert route.name_of("=wire", ends, wire="f16") == "f16"


@pytest.mark.parametrize(
    ("right", "wrong", "code"),
    [
        ("name: mine", "name: yours", "bad-route"),
        ("requires: [peer_copy]", "requires: [peer_cpy]", "bad-value"),
        ("memory: device, at: source", "memory: device", "bad-value"),
        ("memory: mapped", "memory: mapped, at: source", "bad-value"),
        ("memory: mapped", "memory: pinned", "bad-value"),
        ("source.dtype != wire}", "sauce.dtype != wire}", "bad-route"),
        ("source.dtype != wire}", "source.dtype !== wire}", "bad-expression"),
        ("y: near}", "y: nearby}", "bad-route"),
        ("copy: [", "copy: [source, ", "bad-value"),
        ("on: target}", "on: both}", "bad-value"),
        ("name: up, kernel", "name: move, kernel", "bad-route"),
        (
            "name: up, kernel: convert",
            "name: up, copy: [wire, target], kernel: convert",
            "bad-value",
        ),
        ("wire: {memory", "source: {memory", "bad-route"),
        ("prefer: 50", "prefers: 50", "unknown-field"),
        ("prefer: 50", "prefer: 0x32", "ambiguous-value"),
    ],
)
def test_wrong_routes_are_refused_at_their_lines(
    right: str, wrong: str, code: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT.replace(right, wrong, 1))
    with pytest.raises(SpecError) as caught:
        load_route(tmp_path / "mine.yaml")
    assert code in {each.code for each in caught.value.diagnostics}
    assert all(each.span.line for each in caught.value.diagnostics)


def test_mistakes_of_all_route_files_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(TEXT)
    (tmp_path / "two.yaml").write_text(TEXT.replace("small: p2p_write", "smol: p2p_write"))
    with pytest.raises(SpecError) as caught:
        load_routes([tmp_path])
    assert {Path(each.span.file).name for each in caught.value.diagnostics} == {
        "one.yaml",
        "two.yaml",
    }


def test_a_route_for_small_transfers_must_exist(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT.replace("p2p_write", "p2p_wirte"))
    with pytest.raises(SpecError, match="did you mean 'p2p_write'"):
        load_routes(route_folders([tmp_path]))
