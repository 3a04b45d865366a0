"""What stages look like as text."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import networkx as nx
import pytest
from peer_example import peer_schedule

from graphc.draw.dump import dump, dump_any, dump_memory
from graphc.ir import (
    Access,
    Axis,
    Buffer,
    Fill,
    Graph,
    Hazard,
    Mode,
    Op,
    Piece,
    Placement,
    Program,
    Role,
    Rows,
    RowsKind,
)
from graphc.regions import Region


def fill(**changes: object) -> Op:
    access = Access("target", Region("x", 0, 4096), Mode.WRITE)
    return replace(Op("zero", "zero", "g0", Fill(0), (access,)), **changes)  # type: ignore[arg-type]


def program(*ops: Op) -> Program:
    return Program("tiny", ("g0",), {"x": Buffer("x", "g0", "f32", (1024,))}, ops)


def test_an_op_is_one_line_with_device_work_and_accesses() -> None:
    line = dump(program(fill())).splitlines()[-1]
    assert line == "  zero  g0  fill 0  target=x[0:4096] write"


def test_a_program_names_its_devices_and_buffers() -> None:
    assert dump(program()) == (
        "program tiny: devices g0; buffers: 1\n  x  g0  f32[1024]  4096 bytes\nops: 0\n"
    )


CHANGES = [
    {"name": "one"},
    {"step": "other"},
    {"device": "g1"},
    {"work": Fill(1)},
    {"accesses": ()},
    {"accesses": (Access("target", Region("x", 0, 4096), Mode.SCATTER),)},
    {"accesses": (Access("target", Region("x", 0, 4096), Mode.WRITE, Rows(RowsKind.SPLIT, 2)),)},
    {"axis": Axis(8)},
    {"axis": Axis(8, 1)},
    {"piece": Piece(0, 2, Fraction(0), Fraction(1, 2))},
    {"placement": Placement(stream="s")},
    {"placement": Placement(priority=-1)},
    {"placement": Placement(blocks=8)},
    {"placement": Placement(after=("a",))},
    {"placement": Placement(lane="down")},
    {"placement": Placement(pieces=(Fraction(0), Fraction(1, 3), Fraction(1)))},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: next(iter(each)))
def test_ops_that_differ_never_print_alike(change: dict[str, object]) -> None:
    prints = [dump(program(fill(**each))) for each in CHANGES]
    assert len(set(prints)) == len(prints)
    assert dump(program(fill())) != dump(program(fill(**change)))


def test_edges_carry_their_hazards_in_program_order() -> None:
    stage = program(fill(name="a"), fill(name="b"), fill(name="c"))
    edges: nx.DiGraph[str] = nx.DiGraph()
    edges.add_edge("b", "c", hazards=(Hazard.WAW,))
    edges.add_edge("a", "b", hazards=(Hazard.RAW, Hazard.WAR))
    lines = dump(Graph(stage, edges)).splitlines()
    assert lines[-3:] == [
        "edges: 2",
        "  a -> b  read-after-write, write-after-read",
        "  b -> c  write-after-write",
    ]


def test_a_stream_gets_its_waits_op_and_records_in_one_line() -> None:
    text = dump(peer_schedule(1))
    assert "  peer.0                    wait layer.0/routing; run layer.0/p_group\n" in text


def test_every_instruction_is_printed() -> None:
    schedule = peer_schedule(4)
    text = dump(schedule)
    issued = text[text.index("issue order") : text.index("\nedges:")]
    for word in ("run", "record", "wait"):
        assert sum(line.count(f"{word} ") for line in issued.splitlines()[1:]) == sum(
            each.kind == word for each in schedule.instructions
        )


def test_memory_shows_where_each_buffer_lies() -> None:
    text = dump_memory(peer_schedule(1, tokens=2))
    assert "  host/scratch: host, 4096 bytes\n    [0:2048]     wire\n" in text


def test_several_stages_of_one_pass_are_printed_one_after_the_other() -> None:
    schedule = peer_schedule(1)
    both = dump_any((schedule.program, schedule.memory))
    assert both == dump(schedule.program) + "\n" + dump(schedule.memory)


def test_a_role_is_part_of_a_buffer() -> None:
    stage = program()
    other = replace(stage, buffers={"x": replace(stage.buffers["x"], role=Role.INPUT)})
    assert dump(stage) != dump(other)
