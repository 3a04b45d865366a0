"""Saved plans: they come back as they were, and what was changed in one is not believed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import graphc
from graphc.inputs import random_inputs
from graphc.plan import FIRST, Plan, signed
from graphc.resources import shipped
from graphc.spec.model import LayerSpec, load_spec
from graphc.text.diagnostics import SpecError, UsageError

SHIPPED = [
    path for path in sorted(shipped("specs").glob("*.yaml"))
    if isinstance(load_spec(path), LayerSpec)
]  # fmt: skip


def small(spec: Path | str = "moe_peer", **values: Any) -> Plan:
    return graphc.compile(spec, preset="small", cubins=False, arch="sm_90a", **values)


def outputs(plan: Plan) -> dict[str, bytes]:
    with plan.instantiate("reference") as graph:
        graph.bind(random_inputs(plan))
        graph.launch()
        buffers = graph.program.buffers.values()
        shown = [each for each in buffers if each.role != "scratch" and not each.is_optional]
        return {each.name: graph[each.name].tobytes() for each in shown}


@pytest.mark.parametrize("spec", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_spec_comes_back_as_it_was_saved(spec: Path, tmp_path: Path) -> None:
    plan = small(spec)
    plan.save(tmp_path / "small.graphc")
    again = graphc.load(tmp_path / "small.graphc")
    assert again == plan
    again.save(tmp_path / "again.graphc")
    assert (tmp_path / "again.graphc").read_bytes() == (tmp_path / "small.graphc").read_bytes()
    assert outputs(again) == outputs(plan)


@pytest.mark.parametrize("emit", ["capture", "nodes", "streams"])
@pytest.mark.parametrize("memory", ["concurrent", "tight"])
def test_every_way_of_emission_comes_back(tmp_path: Path, emit: str, memory: str) -> None:
    plan = small(emit=emit, memory=memory, route="host")
    plan.save(tmp_path / "small.graphc")
    assert graphc.load(tmp_path / "small.graphc") == plan


def test_phases_name_the_steps_of_every_variant_and_come_back(tmp_path: Path) -> None:
    plan = small(layers=1)
    assert plan.phases["combine"] == ("layer.0/combine", "layer.0/add")
    of_results = {each.removeprefix("layer.0/results/") for each in plan.phases["results"]}
    assert {"down", "up", "push", "move"} <= of_results  # of the routes by host and by peer access
    plan.save(tmp_path / "plan.graphc")
    assert graphc.load(tmp_path / "plan.graphc").phases == plan.phases


def test_a_phase_of_what_is_not_there_is_not_believed(tmp_path: Path) -> None:
    lost = replace(small(layers=1), phases={"combine": ("layer.0/lost",)})
    lost.save(tmp_path / "plan.graphc")
    with pytest.raises(SpecError, match=r"names the step 'layer\.0/lost', which is not there"):
        graphc.load(tmp_path / "plan.graphc")


def test_the_file_says_first_what_it_is(tmp_path: Path) -> None:
    small(layers=1).save(tmp_path / "small.graphc")
    text = (tmp_path / "small.graphc").read_text()
    first, second, third = text.split("\n", 4)[1:4]
    assert first == ' "graphc_plan": 1,'
    assert second.startswith(' "digest": "sha256:')
    assert third == ' "name": "moe_peer",'
    assert {*json.loads(text)} > {"graphc_plan", "digest", "variants"}


@pytest.mark.parametrize("seed", range(8))
def test_a_byte_that_was_changed_is_seen(saved: dict[str, str], tmp_path: Path, seed: int) -> None:
    raw = bytearray(saved["capture"].encode())
    place = random.Random(seed).randrange(raw.index(b"sha256:") + 7, len(raw))
    raw[place] ^= 1
    refused(tmp_path, raw.decode(), "the file was changed or damaged|should be the digest|Invalid")


def test_a_value_that_was_changed_is_seen(saved: dict[str, str], tmp_path: Path) -> None:
    plan = json.loads(saved["capture"])
    plan["params"]["tokens"] += 1
    refused(tmp_path, json.dumps(plan, indent=1), "the file was changed or damaged")
    del plan["digest"]
    refused(tmp_path, json.dumps(plan, indent=1), "its second line should be the digest")
    refused(tmp_path, saved["capture"][:-1], "the file was changed or damaged|Invalid")


def row_of_another(plan: dict[str, Any]) -> None:
    """An op takes another row of a buffer than its accesses say."""
    for op in schedule_of(plan)["program"]["ops"]:
        if any(each["rows"]["kind"] == "row" for each in op["accesses"]):
            op["work"]["scalars"]["rank"] += 1
            return
    raise AssertionError("no op takes a row")


def without_a_guard(plan: dict[str, Any]) -> None:
    next(each for each in plan["images"].values() if each["is_guarded"])["is_guarded"] = False


def other_source(plan: dict[str, Any]) -> None:
    next(iter(plan["images"].values()))["source"] += "// more\n"


@pytest.mark.parametrize("change", [row_of_another, without_a_guard, other_source])
def test_a_change_by_hand_that_no_proof_looks_at_is_seen(tmp_path: Path, change: Change) -> None:
    small("ep_throughput", prepare="explicit").save(tmp_path / "exchange")
    plan = json.loads((tmp_path / "exchange").read_text())
    assert json.dumps(plan, indent=1) == (tmp_path / "exchange").read_text()
    change(plan)
    refused(tmp_path, json.dumps(plan, indent=1), "the file was changed or damaged")


def test_a_plan_is_not_saved_over_a_folder(tmp_path: Path) -> None:
    plan = small(layers=1)
    for path in (".", "/", tmp_path):
        with pytest.raises(SpecError, match="it is a folder") as caught:
            plan.save(path)
        assert caught.value.diagnostics[0].code == "cannot-write"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [None, 5, b"plan"])
def test_what_is_no_path_is_the_callers_mistake(path: Any) -> None:
    for call in (graphc.load, graphc.compile, graphc.check, small(layers=1).save):
        with pytest.raises(UsageError, match="expected the path of a"):
            call(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("plans")
    found = {}
    for emit in ("capture", "nodes"):
        small(layers=1, route="host", emit=emit).save(folder / emit)
        found[emit] = (folder / emit).read_text()
    return found


Change = Callable[[dict[str, Any]], object]


def schedule_of(plan: dict[str, Any]) -> Any:
    return plan["variants"][0]["schedule"]


def without_waits(plan: dict[str, Any]) -> None:
    kept = [each for each in schedule_of(plan)["instructions"] if each["kind"] != "wait"]
    schedule_of(plan)["instructions"] = kept


def without_one_wait(plan: dict[str, Any]) -> None:
    instructions = schedule_of(plan)["instructions"]
    instructions.remove([each for each in instructions if each["kind"] == "wait"][-1])


def all_in_one_place(plan: dict[str, Any]) -> None:
    for slot in schedule_of(plan)["memory"]["slots"].values():
        slot["offset"] = 0


def renamed(name: str) -> Change:
    def change(plan: dict[str, Any]) -> None:
        schedule_of(plan)["program"]["buffers"][name + "2"] = schedule_of(plan)["program"][
            "buffers"
        ].pop(name)

    return change


def set_to(value: Any, *path: Any) -> Change:
    def change(plan: dict[str, Any]) -> None:
        inner: Any = plan
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value

    return change


SCHEDULE = ("variants", 0, "schedule")
PROGRAM = (*SCHEDULE, "program")


def touching(name: str, work: str) -> Change:
    """The first access of the first op of a kind of work is to another buffer."""

    def change(plan: dict[str, Any]) -> None:
        ops = schedule_of(plan)["program"]["ops"]
        op = next(each for each in ops if each["work"]["kind"] == work and each["accesses"])
        op["accesses"][0]["region"]["buffer"] = name

    return change


def without_buffer(name: str) -> Change:
    return lambda plan: schedule_of(plan)["program"]["buffers"].pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_waits, "not the one that was proven:\n\n.*unordered|race"),
        (without_one_wait, "not the one that was proven"),
        (all_in_one_place, "not the one that was proven"),
        (renamed("residual"), "there is no buffer 'residual'|calls itself|has no memory"),
        (without_buffer("residual"), "touches buffer 'residual', which is not there"),
        (touching("zzz", "kernel"), "touches buffer 'zzz', which is not there"),
        (touching("zzz", "copy"), "touches buffer 'zzz', which is not there"),
        (set_to(0, *PROGRAM, "nominal"), "a nominal extent of 0, which is none"),
        (set_to(-1, *PROGRAM, "nominal"), "a nominal extent of -1, which is none"),
        (set_to(2, "graphc_plan"), "it has format 2; this graphc reads format 1"),
        (set_to("1", "graphc_plan"), "at 'graphc_plan': Input should be a valid integer"),
        (lambda plan: plan.pop("graphc_plan"), "at 'graphc_plan': Field required"),
        (lambda plan: plan.pop("images"), "at 'images': Field required"),
        (set_to({}, "images"), "has no kernel image"),
        (set_to([], "variants"), "it has no variants"),
        (set_to("nowhere", *SCHEDULE, "origin"), "no stream 'nowhere' to begin on"),
        (set_to(True, *SCHEDULE, "is_handwritten"), "its schedule is hand-written"),
        (set_to("gpu9", *SCHEDULE, "streams", 0, "device"), "is on no device of the plan"),
        (set_to("gpu9", *SCHEDULE, "program", "ops", 0, "device"), "is on no device of the plan"),
        (set_to([], *SCHEDULE, "instructions"), "not the one that was proven"),
        (
            set_to("gone", *SCHEDULE, "instructions", 0, "stream"),
            "not the one that was proven|not there",
        ),
    ],
)
def test_what_was_changed_is_not_believed(
    saved: dict[str, str], tmp_path: Path, change: Change, message: str
) -> None:
    plan = json.loads(saved["capture"])
    change(plan)
    refused(tmp_path, with_its_digest(plan), message)


@pytest.mark.parametrize("change", [set_to([], *SCHEDULE, "edges"), without_waits])
def test_edges_are_proven_where_they_are_what_is_built(
    saved: dict[str, str], tmp_path: Path, change: Change
) -> None:
    plan = json.loads(saved["nodes"])
    change(plan)
    refused(tmp_path, with_its_digest(plan), "not the one that was proven")


DIVIDED: dict[str, Any] = {"schedule.units": "device", "schedule.launch": "free"}


def at_first(sort: str, /, **values: Any) -> Change:
    """The first op of a kind of work with other values; ``awaited`` is the first it awaits."""

    def change(plan: dict[str, Any]) -> None:
        work = next(each for each in works(plan) if each["kind"] == sort)
        work.update({key: value for key, value in values.items() if key != "awaited"})
        if "awaited" in values:
            work["signals"][0].update(values["awaited"])

    return change


def works(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [op["work"] for op in schedule_of(plan)["program"]["ops"]]


def without_awaiting(plan: dict[str, Any]) -> None:
    next(each for each in works(plan) if each["kind"] == "await")["signals"] = []


@pytest.mark.parametrize("emit", ["capture", "nodes"])
def test_a_divided_plan_comes_back(tmp_path: Path, emit: str) -> None:
    plan = small(layers=1, route="host", emit=emit, **DIVIDED)
    plan.save(tmp_path / "small.graphc")
    assert graphc.load(tmp_path / "small.graphc") == plan
    assert plan.variants[0].proof.units == 2
    assert plan.variants[0].proof.awaits > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_awaiting, "not the one that was proven:\n\n.*race"),
        (at_first("signal", to=[]), "not the one that was proven.*is not sent to unit"),
        (at_first("signal", signal="other"), "not the one that was proven.*does not send"),
        (at_first("signal", to=["gpu9"]), "speaks of unit 'gpu9', which is not there"),
        (at_first("await", awaited={"unit": "gpu9"}), "speaks of unit 'gpu9', which is not there"),
        (at_first("await", awaited={"entry": "none"}), "awaits entry 'none', which is not there"),
        (at_first("await", awaited={"is_handshake": True}), "not the one that was proven.*race"),
        (at_first("begin", kind="join"), "not the one that was proven.*does not begin"),
        (set_to([], *SCHEDULE, "units"), "not the one that was proven.*speaks of units|not there"),
        (set_to("gone", *SCHEDULE, "units", 0, "origin"), "has no stream 'gone' to begin on"),
        (set_to(["gpu9"], *SCHEDULE, "units", 0, "devices"), "is on no device of the plan: 'gpu9'"),
    ],
)
def test_what_was_changed_between_units_is_not_believed(
    tmp_path: Path, change: Change, message: str
) -> None:
    small(layers=1, route="host", **DIVIDED).save(tmp_path / "divided")
    plan = json.loads((tmp_path / "divided").read_text())
    change(plan)
    refused(tmp_path, with_its_digest(plan), message)


def given_to(argument: str, change: Callable[[list[dict[str, Any]]], object]) -> Change:
    """The accesses by that argument of the first op that has it, changed."""

    def changed(plan: dict[str, Any]) -> None:
        for op in schedule_of(plan)["program"]["ops"]:
            own = [each for each in op["accesses"] if each["argument"] == argument]
            if own:
                change(own)
                op["accesses"] = [each for each in op["accesses"] if each["argument"] != argument]
                op["accesses"] += own
                return

    return changed


def tables_of(plan: dict[str, Any], number: int) -> None:
    for image in plan["images"].values():
        image["tables"] = dict.fromkeys(image["tables"], number)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (given_to("counts", lambda own: own.pop()), "other buffers for 'counts' than"),
        (given_to("counts", lambda own: own.reverse()), "other buffers for 'counts' than"),
        (lambda plan: tables_of(plan, 2), "other buffers for 'counts' than its kernel takes"),
        (lambda plan: tables_of(plan, 4), "other buffers for 'counts' than its kernel takes"),
        (lambda plan: tables_of(plan, 10**30), "other buffers for 'counts' than its kernel takes"),
        (set_to([], "variants", 0, "requires"), "which the plan does not require"),
    ],
)
def test_what_was_changed_between_ranks_is_not_believed(
    tmp_path: Path, change: Change, message: str
) -> None:
    small("ep_throughput", ranks=3, gpus=3).save(tmp_path / "ranks")
    plan = json.loads((tmp_path / "ranks").read_text())
    change(plan)
    refused(tmp_path, with_its_digest(plan), message)


@pytest.mark.parametrize("text", ["", "graphc: 1", "[]", "{}", "\0\1", "null", "1"])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text, "that can be trusted: (at|Input|Invalid)")


def with_its_digest(plan: dict[str, Any]) -> str:
    """As somebody writes it who makes the digest anew."""
    plan.pop("digest")
    text = json.dumps(plan, indent=1)
    return signed(text.encode()).decode() if text.encode().startswith(FIRST) else text


def refused(folder: Path, text: str, message: str) -> None:
    path = folder / "changed.graphc"
    path.write_text(text)
    with pytest.raises(SpecError, match=f"(?s)changed.graphc' is no plan.*({message})") as caught:
        graphc.load(path)
    (found,) = caught.value.diagnostics
    assert found.code == "bad-plan"
    assert found.hint == "compile the spec again with this version of graphc"


def test_a_plan_that_is_missing_or_a_folder_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.graphc", tmp_path):
        with pytest.raises(SpecError, match="cannot read") as caught:
            graphc.load(path)
        assert caught.value.diagnostics[0].code == "missing-file"
