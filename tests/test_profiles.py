"""Machine profiles: what they take, and what they say of mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from graphc.plan import Need, Requirement
from graphc.profiles import at, load_profile
from graphc.resources import machine_path, shipped
from graphc.text.diagnostics import SpecError

MACHINES = sorted((shipped("specs") / "machines").glob("*.yaml"))
APART, TOGETHER = {"a": 0, "b": 1}, {"a": 0, "b": 0}


def messages(folder: Path, change: Any) -> str:
    """What a copy of a shipped profile gets once it was changed."""
    data = yaml.safe_load(machine_path("h200x2").read_text())
    change(data)
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(SpecError) as caught:
        load_profile(path)
    return str(caught.value)


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_shipped_profile_goes_by_its_name_and_by_its_file(path: Path) -> None:
    assert load_profile(path.stem) is load_profile(path)
    assert load_profile(path).name == path.stem


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_every_section_of_a_profile_names_its_source(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    sections = [data[name] for name in ("gpus", "memory", "arithmetic", "host", "overhead")]
    sections += [data["peer"]] if data["peer"] else []
    for each in [*sections, *data["kernels"].values()]:
        assert len(each["source"]) > 10
        assert each["source"] != "x"


def test_a_curve_is_a_line_over_the_logarithm() -> None:
    curve = [[1.0, 10.0], [4.0, 30.0], [16.0, 20.0]]
    assert [at(curve, x) for x in (0.5, 1, 2, 4, 8, 99)] == [10, 10, 20, 30, 25, 20]


def test_a_missing_profile_names_those_that_are_there() -> None:
    with pytest.raises(SpecError, match=r"did you mean 'h200x2'\?"):
        load_profile("h200x3")
    with pytest.raises(SpecError, match="graphc brings consumer2_pcie4, h100x8, h200x2"):
        load_profile("nothing/like/it.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["memory"].pop("source"), "'memory' needs a field 'source'"),
        (lambda data: data["memory"].update(gb_s=0), "expected a number above 0"),
        (lambda data: data["memory"].update(gb_s="fast"), "expected a number above 0"),
        (lambda data: data["overhead"].update(node_us=-1), "expected microseconds, 0 or more"),
        (lambda data: data["gpus"].update(count=0), "must be at least 1"),
        (lambda data: data["host"].update(reads_gb_s=[]), "expected points such as"),
        (lambda data: data["host"].update(reads_gb_s=[[8]]), "a point is two numbers above 0"),
        (lambda data: data["host"].update(reads_gb_s=[[8, 1], [4, 2]]), "the points ascend"),
        (
            lambda data: data["kernels"]["dense"].update(efficiency=[[640, 0.5], [2560, 1.25]]),
            "a share of the rate is at most 1, but at 2560 it is 1.25",
        ),
        (lambda data: data["host"].update(reads=1), "unknown field 'reads'"),
        (lambda data: data.update(graphc_machine=2), "only format 1 is known"),
    ],
)
def test_a_mistake_in_a_profile_is_told(tmp_path: Path, change: Any, message: str) -> None:
    assert message in messages(tmp_path, change)


def test_needs_hold_as_the_profile_says() -> None:
    peer, same = Requirement(Need.PEER_COPY, "a", "b"), Requirement(Need.SAME_GPU, "a", "b")
    linked, apart = load_profile("h200x2"), load_profile("h200x2_no_p2p")
    assert linked.why_not(peer, APART) is None
    assert "do not reach" in str(apart.why_not(peer, APART))
    assert "two GPUs" in str(linked.why_not(same, APART))
    for profile in (linked, apart):
        assert profile.why_not(peer, TOGETHER) is profile.why_not(same, TOGETHER) is None
