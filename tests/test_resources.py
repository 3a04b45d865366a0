"""Shipped specs go by name; a file of one's own comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphc
from graphc.cli.guard import guarded
from graphc.resources import shipped, spec_path


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_name_means_the_shipped_spec() -> None:
    assert spec_path("moe_peer") == shipped("specs") / "moe_peer.yaml"
    assert spec_path("hand/peer_whole") == shipped("specs") / "hand" / "peer_whole.yaml"


def test_a_file_of_that_name_comes_first() -> None:
    Path("moe_peer").write_text("graphc: 1\n")
    assert spec_path("moe_peer") == Path("moe_peer")


def test_anything_else_is_left_as_it_is() -> None:
    for path in ("nothing", "moe_peer.yaml", "/moe_peer", "../specs"):
        assert spec_path(path) == Path(path)


def test_python_and_the_command_line_take_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert graphc.check("hand/peer_whole")[0][0].is_handwritten
    assert guarded(["check", "hand/peer_whole"]) == 0
    assert capsys.readouterr().out.startswith("peer_whole: no race")


def test_a_path_that_is_not_here_is_answered_with_the_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guarded(["check", "specs/moe_peer.yaml"]) == 1
    assert "write moe_peer" in capsys.readouterr().err
