"""What becomes of small programs when they are divided, word for word; every case is executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from division import World, in_order, laid, scheduled
from small_programs import small_program

from graphc.backends.interleaving import interleaving
from graphc.ir import (
    SPLIT,
    Access,
    Await,
    Axis,
    Buffer,
    Division,
    Emit,
    Kernel,
    LaunchContract,
    Mode,
    Op,
    Opaque,
    Placed,
    Placement,
    Program,
    Role,
    Settings,
)
from graphc.passes.split_pieces import split_pieces
from graphc.pipeline import verify
from graphc.regions import Region

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


def test_a_signal_of_several_ops_goes_if_others_tell_of_all_of_them_together() -> None:
    """d comes after b0 and b1, q after b2, so that none needs to wait for all three at once."""
    ops = [
        {"name": "b0", "at": "g0", "writes": ["x0"]},
        {"name": "b1", "at": "g0", "writes": ["x1"]},
        {"name": "d", "at": "g0", "reads": ["x0", "x1"], "writes": ["y"]},
        {"name": "b2", "at": "g0", "writes": ["x2"]},
        {"name": "q", "at": "g0", "reads": ["x2"], "writes": ["z"]},
        {"name": "f", "at": "g1", "reads": ["x0", "x1", "x2", "y", "z"], "writes": ["u"]},
        {"name": "g", "at": "g1", "reads": ["x0", "x1", "x2", "y", "z"], "writes": ["v"]},
    ]
    buffers = {**dict.fromkeys(("x0", "x1", "x2", "y", "z"), "g0"), "u": "g1", "v": "g1"}
    program = small_program(buffers, ops)
    kin = tuple(replace(op, family=op.step[0]) for op in program)
    settings = Settings(emit=Emit.NODES, units=Division.DEVICE)
    (placed,), _ = laid([replace(program, ops=kin)], settings)
    assert [op.name for op in placed.graph.program if op.work.kind == "signal"] == [
        "signal/d",
        "signal/q",
    ]
    execute([replace(program, ops=kin)], settings)


def test_a_handshake_leaves_an_await_alone_that_serves_others() -> None:
    """b and c await a together; only b must not overtake what e of the launch before reads."""
    ops = [
        {"name": "a", "at": "g0", "updates": ["s"], "writes": ["x"]},
        {"name": "b", "at": "g1", "reads": ["x"], "writes": ["t"]},
        {"name": "c", "at": "g1", "reads": ["x"], "writes": ["v"]},
        {"name": "e", "at": "g2", "reads": ["t"], "updates": ["w"]},
    ]
    buffers = {"s": "g0 state", "x": "g0", "t": "g1", "v": "g1", "w": "g2 state"}
    settings = Settings(emit=Emit.NODES, units=Division.DEVICE, launch=LaunchContract.FREE)
    program = small_program(buffers, ops)
    (placed,), _ = laid([program], settings)
    after = placed.graph.edges.succ
    assert set(after["await/b"]) == {"b", "c"}
    assert set(after["await/b.previous"]) == {"b"}
    execute([program], settings)


def test_entries_with_other_cuts_meet_by_the_same_bytes() -> None:
    """Rows in quarters and rows in thirds: where they meet is compared at a common extent."""
    rows = Buffer("t", "g0", "u8", (6,), 1, Role.STATE)
    quarters = counted("plan", "g0", Mode.WRITE, 4)
    thirds = counted("move", "g1", Mode.READ, 3)
    program = Program("p", ("g0", "g1"), {"t": rows}, (), 6)
    entries = [
        split_pieces(replace(program, ops=(op,), entry=entry))
        for op, entry in ((quarters, "step"), (thirds, "move"))
    ]
    assert [each.nominal for each in entries] == [8, 6]
    settings = Settings(emit=Emit.NODES, units=Division.DEVICE, launch=LaunchContract.FREE)
    (_, move), _ = laid(entries, settings)
    waits = {
        op.name: [each.signal for each in op.work.signals]
        for op in move.graph.program
        if isinstance(op.work, Await)
    }
    assert waits == {
        "await/move/piece.0.previous": ["step/plan/piece.0.previous", "step/plan/piece.1.previous"],
        "await/move/piece.1.previous": ["step/plan/piece.1.previous", "step/plan/piece.2.previous"],
        "await/move/piece.2.previous": ["step/plan/piece.2.previous", "step/plan/piece.3.previous"],
    }


def counted(name: str, device: str, mode: Mode, pieces: int) -> Op:
    access = Access("t", Region("t", 0, 6), mode, SPLIT)
    return Op(name, name, device, Opaque(), (access,), Axis(6, 1), placement=cut(pieces))


def cut(pieces: int) -> Placement:
    return Placement(pieces=tuple(Fraction(index, pieces) for index in range(pieces + 1)))


def test_sums_of_one_kernel_need_no_order_between_launches_either() -> None:
    total = Buffer("t", "g0", "i32", (8,), role=Role.STATE)
    access = Access("y", Region("t", 0, 32), Mode.ACCUMULATE)
    sums = [
        Op(name, name, at, Kernel("sum", {}), (access,)) for name, at in (("a", "g0"), ("b", "g1"))
    ]
    program = Program("p", ("g0", "g1"), {"t": total}, tuple(sums))
    settings = Settings(units=Division.DEVICE, launch=LaunchContract.FREE)
    (placed,), _ = laid([program], settings)
    assert [op.work.kind for op in placed.graph.program] == ["begin", "begin", "kernel", "kernel"]
    other = replace(sums[1], work=Kernel("greatest", {}))
    (placed,), _ = laid([replace(program, ops=(sums[0], other))], settings)
    kinds = [op.work.kind for op in placed.graph.program]
    assert kinds.count("await") == 2  # in the launch, and from one to the next
