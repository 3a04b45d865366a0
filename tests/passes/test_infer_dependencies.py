"""Mistakes that only the bytes show, and the size of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from small_programs import small_program

from graphc.ir import Join, Kernel, Mode
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.text.diagnostics import Span, SpecError

BUFFERS = {"x": "g0 state", "y": "g0 output", "s": "g0"}


def op(name: str, **rest: Any) -> Mapping[str, Any]:
    return {"name": name, "at": "g0", **rest}


def mistakes(*ops: Mapping[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        infer_dependencies(small_program(BUFFERS, ops))
    return [(each.code, each.message) for each in caught.value.diagnostics]


def test_pieces_that_write_the_same_bytes_conflict() -> None:
    ((code, message),) = mistakes(op("w", writes=["x/all"], pieces=3))
    assert code == "pieces-conflict"
    assert "'w'" in message
    assert "x[0:8]" in message


def test_a_piece_may_not_read_what_another_one_writes() -> None:
    found = mistakes(op("w", reads=["x/all"], writes=["x"], pieces=2))
    assert {code for code, _ in found} == {"pieces-conflict"}


def test_a_ring_of_slots_is_no_conflict_of_pieces() -> None:
    """A slot that another step empties in between may be written again by the same step."""
    ops = (op("down", writes=["s"]), op("up", reads=["s"]))
    program = small_program(BUFFERS, ops)
    again = tuple(replace(each, name=f"{each.name}/2") for each in program)
    graph = infer_dependencies(replace(program, ops=program.ops + again))
    assert list(graph.edges.edges) == [("down", "up"), ("up", "down/2"), ("down/2", "up/2")]


@pytest.mark.parametrize(("kind", "edges"), [("i32", []), ("f32", [("a", "b")])])
def test_sums_of_floats_keep_their_order(kind: str, edges: list[Any]) -> None:
    program = small_program(BUFFERS, (op("a", adds=["x/all"]), op("b", adds=["x/all"])))
    ops = tuple(
        replace(each, work=Kernel("sum", {}), accesses=(replace(each.accesses[0], argument="y"),))
        for each in program
    )
    buffers = {"x": replace(program.buffers["x"], dtype=kind, shape=(2,))}
    graph = infer_dependencies(replace(program, ops=ops, buffers=buffers))
    assert list(graph.edges.edges) == edges


def test_bytes_that_nobody_has_written_may_not_be_read() -> None:
    found = mistakes(
        op("half", writes=["s[0:4]"]), op("read", reads=["s"]), op("count", adds=["y"])
    )
    assert [code for code, _ in found] == ["unwritten-read"] * 2
    assert "'s'" in found[0][1] or "'s'" in found[1][1]


def test_mistakes_stand_where_the_op_stands() -> None:
    program = small_program(BUFFERS, [op("w", writes=["x/all"], pieces=2)])
    there = Span("spec.yaml", 7, 3)
    ops = tuple(replace(each, span=there) for each in program)
    with pytest.raises(SpecError) as caught:
        infer_dependencies(replace(program, ops=ops))
    assert caught.value.diagnostics[0].span == there


def test_after_may_not_turn_the_order_of_bytes_around() -> None:
    ((code, message),) = mistakes(
        op("make", writes=["s"], after=["use"]), op("use", reads=["s"], writes=["y"])
    )
    assert code == "after-cycle"
    assert "'make' cannot come after 'use'" in message


def test_after_names_an_op_and_means_all_of_its_steps() -> None:
    program = small_program(
        BUFFERS,
        [
            op("t/down", reads=["x"]),
            op("t/up", reads=["x"]),
            op("tt", reads=["x"]),
            op("late", reads=["x"], after=["t"]),
        ],
    )
    edges = infer_dependencies(program).edges
    assert sorted(edges.pred["late"]) == ["t/down", "t/up"]


@pytest.mark.parametrize("pieces", [4, 8, 32])
def test_all_to_all_orders_stay_linear(pieces: int) -> None:
    """Also those of `after`, and of several buffers behind the same ops."""
    ops = [
        op("make", reads=["x"], writes=["s"], pieces=pieces),
        op("use", reads=["s/all"], writes=["y"], pieces=pieces),
        op("late", reads=["x"], pieces=pieces, after=["use"]),
    ]
    buffers = {name: f"{text}" for name, text in BUFFERS.items()}
    program = small_program(buffers, ops)
    if pieces > 8:
        ops = [replace_modes(each) for each in program]
        program = replace(program, ops=tuple(ops))
    graph = infer_dependencies(program)
    joins = [each for each in graph.program if isinstance(each.work, Join)]
    assert {each.name for each in joins} == {"join/use/make", "join/late/use"}
    assert graph.edges.number_of_edges() <= 4 * pieces


def replace_modes(each: Any) -> Any:
    """More pieces than rows: whoever writes scatters over all, so that every piece has bytes."""
    accesses = tuple(
        replace(
            access,
            mode=Mode.SCATTER if access.mode is Mode.WRITE else access.mode,
            region=replace(access.region, start=0, stop=8),
        )
        for access in each.accesses
    )
    return replace(each, accesses=accesses)


def test_all_to_all_over_buffers_of_their_own_goes_through_a_join_too() -> None:
    """As ranks do: each reads what every other one has written, from a buffer for each."""
    buffers = {f"b{rank}": "g0" for rank in range(4)} | {"x": "g0 input"}
    ops = [
        *(op(f"make{rank}", reads=["x"], writes=[f"b{rank}"]) for rank in range(4)),
        *(op(f"use{rank}", reads=list(buffers)) for rank in range(4)),
    ]
    program = small_program(buffers, ops)
    ranks = tuple(replace(each, step=each.step[:-1]) for each in program)
    graph = infer_dependencies(replace(program, ops=ranks))
    assert graph.edges.number_of_edges() == 8
