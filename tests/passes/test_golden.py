"""What each pass makes of small programs, word for word; every case is executed, too."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import yaml
from oracles import Machine, interleaving, topological
from small_programs import small_program, small_spmd_program

from graphc.ir import Graph, Memory, Placed, Program, Schedule, Settings
from graphc.passes.assign_streams import assign_streams
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.insert_events import insert_events
from graphc.passes.plan_memory import plan_memory, separate
from graphc.verify import verify

GOLDEN = Path(__file__).parent.parent / "golden"
PASSES = ("infer_dependencies", "plan_memory", "assign_streams", "insert_events")
CASES = [path for name in PASSES for path in sorted((GOLDEN / name).glob("*.yaml"))]


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_outcome_is_the_one_written_down(path: Path, update_golden: bool) -> None:
    text = path.read_text()
    head, _, _ = text.partition("--- |\n")
    case, expected = [*yaml.safe_load_all(text), ""][:2]
    if "ranks" in case:
        program = small_spmd_program(case["ranks"], case["buffers"], case["ops"])
    else:
        program = small_program(case["buffers"], case["ops"])
    graph, memory = plan_memory(infer_dependencies(program), case.get("memory", "concurrent"))
    placed = assign_streams(graph, case.get("max_streams", 4))
    schedule = insert_events(placed, memory, Settings())
    found = {
        "infer_dependencies": lambda: edges_of(graph),
        "plan_memory": lambda: memory_of(memory),
        "assign_streams": lambda: streams_of(placed),
        "insert_events": lambda: instructions_of(schedule),
    }[path.parent.name]()
    if update_golden:
        path.write_text(head + "--- |\n" + "".join(f"  {line}\n" for line in found.splitlines()))
    else:
        assert found == expected
    execute(program, schedule)


def execute(program: Program, schedule: Schedule) -> None:
    """The schedule is proven, and any order that it allows leaves the bytes of program order."""
    verify(schedule)
    verify(schedule, order="edges")
    reference = Machine(program, separate(program), None, poison=17)
    for op in program:
        reference.run(op)
    ops = {op.name: op for op in schedule.program}
    for seed in range(8):
        rng = Random(seed)
        for order in (interleaving(schedule, rng), topological(list(ops), schedule.edges, rng)):
            machine = Machine(program, schedule.memory, None, poison=221)
            for name in order:
                machine.run(ops[name])
            assert machine.outcome() == reference.outcome()


def edges_of(graph: Graph) -> str:
    """Each op with what it waits for, in program order."""
    lines = []
    for op in graph.program:
        before = graph.edges.pred[op.name]
        lines += [
            f"{one} -> {op.name}  {', '.join(data['hazards'])}" for one, data in before.items()
        ]
        if not before:
            lines.append(op.name)
    return "\n".join(lines) + "\n"


def memory_of(memory: Memory) -> str:
    lines = [f"{each.name}: {each.nbytes} bytes of {each.device}" for each in memory.allocations]
    lines += [f"{name}: {slot.allocation} + {slot.offset}" for name, slot in memory.slots.items()]
    return "\n".join([*lines, f"added orders: {memory.added_orders}"]) + "\n"


def streams_of(placed: Placed) -> str:
    """Each stream with its ops in order of issue; the origin first of all."""
    lines = [f"origin: {placed.origin}"]
    for stream in placed.streams:
        ops = [name for name in placed.order if placed.stream_of[name] == stream.name]
        lines.append(f"{stream.name} ({stream.device}, {stream.priority}): {' '.join(ops)}")
    return "\n".join(lines) + "\n"


def instructions_of(schedule: Schedule) -> str:
    lines = []
    for each in schedule.instructions:
        what = each.op if each.kind == "run" else getattr(each, "event", "")
        lines.append(f"{each.stream}: {each.kind} {what}")
    return "\n".join(lines) + "\n"
