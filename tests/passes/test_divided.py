"""What becomes of small programs when they are divided, word for word; every case is executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from division import World, in_order, laid, scheduled
from small_programs import small_program

from graphc.backends.interleaving import interleaving
from graphc.ir import Await, Division, Emit, LaunchContract, Placed, Program, Settings
from graphc.pipeline import verify

GOLDEN = Path(__file__).parent.parent / "golden" / "divide"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_division_is_the_one_written_down(path: Path, update_golden: bool) -> None:
    text = path.read_text()
    head, _, _ = text.partition("--- |\n")
    case, expected = [*yaml.safe_load_all(text), ""][:2]
    programs, settings = read(case)
    placed, _ = laid(programs, settings)
    found = "\n".join(line for each in placed for line in lines_of(each)) + "\n"
    if update_golden:
        path.write_text(head + "--- |\n" + "".join(f"  {line}\n" for line in found.splitlines()))
    else:
        assert found == expected
    execute(programs, settings)


def read(case: dict[str, Any]) -> tuple[list[Program], Settings]:
    settings = Settings(
        emit=Emit(case.get("emit", "capture")),
        units=Division.DEVICE,
        launch=LaunchContract(case.get("launch", "joined")),
    )
    whole = small_program(case["buffers"], case["ops"])
    entries = case.get("entries", {"step": [op["name"] for op in case["ops"]]})
    programs = [
        replace(whole, ops=tuple(op for op in whole if op.step in names), entry=entry)
        for entry, names in entries.items()
    ]
    return programs, settings


def lines_of(placed: Placed) -> Iterator[str]:
    """The streams of each unit, then each await: its signals, and what is before it in its unit."""
    program = placed.graph.program
    yield program.entry
    for unit in placed.units:
        yield f"  {unit.name} from {unit.origin}"
        for stream in (each for each in placed.streams if each.device in unit.devices):
            ops = [name for name in placed.order if placed.stream_of[name] == stream.name]
            yield f"    {stream.name}: {' '.join(ops)}"
    for op in program:
        if isinstance(op.work, Await):
            for each in op.work.signals:
                previous = " of the launch before" if each.is_handshake else ""
                yield f"  {op.name}: {each.signal} of {each.unit}{previous}"
            signals = {name for name, data in placed.graph.edges.pred[op.name].items()
                       if "signal" in data["hazards"]}  # fmt: skip
            before = [name for name in placed.graph.edges.pred[op.name] if name not in signals]
            yield f"    after {' '.join(before)}"


def execute(programs: Sequence[Program], settings: Settings) -> None:
    schedules = scheduled(programs, settings)
    verify(schedules)
    launches = [*schedules, *schedules, *schedules]
    expected = World(schedules, None, poison=17)
    for step in in_order(launches):
        expected.take(launches, step)
    for seed in range(20):
        world = World(schedules, None, poison=17)
        for step in interleaving(launches, seed):
            world.take(launches, step)
        assert world.read == expected.read
        for entry, machine in world.machines.items():
            assert machine.outcome() == expected.machines[entry].outcome()


def test_a_program_on_one_device_is_not_divided() -> None:
    programs, settings = read(
        {"buffers": {"x": "g0 inout"}, "ops": [{"name": "a", "at": "g0", "updates": ["x"]}]}
    )
    (schedule,) = scheduled(programs, settings)
    assert schedule.units == ()
    assert [op.name for op in schedule.program] == ["a"]


def test_an_entry_that_runs_nothing_on_a_device_still_counts_its_launches() -> None:
    ops = [{"name": name, "at": at, "updates": [at]} for name, at in (("a", "g0"), ("b", "g1"))]
    buffers = {"g0": "g0 state", "g1": "g1 state"}
    case = {"buffers": buffers, "ops": ops, "entries": {"step": ["a"], "prepare": []}}
    for schedule in scheduled(*read(case)):
        assert [unit.name for unit in schedule.units] == ["g0", "g1"]
        begins = [op.name for op in schedule.program if op.work.kind == "begin"]
        assert begins == ["g0/begin", "g1/begin"]
