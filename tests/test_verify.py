"""The proof by itself: schedules written by hand, and damage to one of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from graphc.ir import (
    HOST,
    MAPPED,
    Access,
    Allocation,
    Axis,
    Buffer,
    Copy,
    Extern,
    Instruction,
    Kernel,
    Memory,
    Mode,
    Op,
    Opaque,
    Piece,
    Placement,
    Program,
    Record,
    Role,
    Rows,
    RowsKind,
    Run,
    Schedule,
    Slot,
    Stream,
    Sync,
    Wait,
    Work,
)
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.plan_memory import separate
from graphc.passes.split_pieces import split_pieces
from graphc.regions import Region
from graphc.text.diagnostics import CompilerBug, Span, SpecError
from graphc.verify import verify
from graphc.verify.regions import region_faults

BUFFERS = {
    "x": Buffer("x", "g0", "u8", (8,), role=Role.INOUT),
    "y": Buffer("y", "g0", "u8", (8,)),
    "z": Buffer("z", "g1", "u8", (8,), role=Role.OUTPUT),
    "m": Buffer("m", MAPPED, "u8", (8,)),
    "n": Buffer("n", "g0", "i32", (2,), role=Role.STATE),
}
STREAMS = (Stream("a", "g0"), Stream("b", "g0"), Stream("c", "g1"), Stream("h", HOST))
DEVICES = {"a": "g0", "b": "g0", "c": "g1", "h": HOST}


def op(name: str, stream: str, *accesses: tuple[str, Mode], line: int = 0, step: str = "") -> Op:
    touched = tuple(
        Access(f"a{index}", Region(buffer, 0, 8), mode)
        for index, (buffer, mode) in enumerate(accesses)
    )
    return Op(name, step or name, DEVICES[stream], Opaque(), touched, span=at(line))


def at(line: int) -> Span:
    return Span("hand.yaml", line, 1)


def by_hand(ops: Sequence[Op], *instructions: Instruction) -> Schedule:
    program = Program("hand", ("g0", "g1"), BUFFERS, tuple(ops))
    return Schedule(program, STREAMS, "a", instructions, (), separate(program), is_handwritten=True)


R, W, U, ACC = Mode.READ, Mode.WRITE, Mode.UPDATE, Mode.ACCUMULATE
PAIR = (op("one", "a", ("x", R), ("y", W), line=3), op("two", "b", ("y", R), line=4))


def forked(*extra: Instruction) -> Schedule:
    return by_hand(
        PAIR,
        Record("a", "begin", at(1)),
        Wait("b", "begin", at(2)),
        Run("a", "one", at(3)),
        *extra,
        Run("b", "two", at(5)),
        Record("b", "end", at(6)),
        Wait("a", "end", at(7)),
    )


def faults(schedule: Schedule) -> str:
    with pytest.raises(SpecError) as caught:
        verify(schedule)
    return str(caught.value)


def test_a_forgotten_wait_is_a_race_with_both_ops_their_bytes_and_a_remedy() -> None:
    with pytest.raises(SpecError) as caught:
        verify(forked(Record("a", "done", at(4))))
    (found,) = caught.value.diagnostics
    assert found.code == "race"
    assert "race" in found.message
    assert "'two'" in found.message
    assert "'one'" in found.message
    assert "y[0:8]" in found.message
    assert "read-after-write" in found.message
    assert found.span == at(5)
    assert found.notes[0].span == at(3)
    assert found.hint == "on 'b', before 'two', wait for event 'done'"


def test_a_wait_mends_it_and_makes_the_fork_redundant() -> None:
    proof = verify(forked(Record("a", "done", at(4)), Wait("b", "done", at(4))))
    assert proof.redundant == (at(2),)
    assert proof.ops == 2


def test_a_stream_that_does_not_join_races_with_the_next_replay() -> None:
    schedule = forked(Record("a", "done", at(4)), Wait("b", "done", at(4)))
    cut = replace(schedule, instructions=schedule.instructions[:-1])
    assert "of the replay before" in faults(cut)


def test_an_event_recorded_again_counts_from_its_latest_record() -> None:
    ops = (op("one", "a", ("y", W)), op("more", "a", ("x", U)), op("two", "b", ("x", R)))
    early = by_hand(
        ops,
        Run("a", "one"),
        Record("a", "e"),
        Run("a", "more"),
        Wait("b", "e"),
        Run("b", "two"),
        Record("b", "f"),
        Wait("a", "f"),
    )
    assert "'more'" in faults(early)
    instructions = list(early.instructions)
    instructions.insert(3, Record("a", "e"))
    verify(replace(early, instructions=tuple(instructions)))


def test_the_host_orders_what_it_issues_behind_what_it_waited_for() -> None:
    ops = (
        op("down", "a", ("x", R), ("m", W)),
        op("host", "h", ("m", U)),
        op("up", "b", ("m", R), ("y", W)),
        op("use", "a", ("y", R), ("x", U)),
    )

    def issue(*sync: Instruction) -> Schedule:
        return by_hand(
            ops,
            Run("a", "down"),
            *sync,
            Run("h", "host"),
            Run("b", "up"),
            Record("b", "e"),
            Wait("a", "e"),
            Run("a", "use"),
        )

    verify(issue(Sync("a", at(2))))
    assert "'host'" in faults(issue())


def test_a_host_sync_that_orders_nothing_is_redundant() -> None:
    ops = (op("one", "a", ("x", U)), op("two", "a", ("x", U)))
    proof = verify(by_hand(ops, Run("a", "one"), Sync("a", at(2)), Run("a", "two")))
    assert proof.redundant == (at(2),)


def test_a_line_is_redundant_only_if_all_its_instances_can_go() -> None:
    ops = tuple(
        op(f"{name}.{turn}", stream, (buffer, mode))
        for turn in range(2)
        for name, stream, buffer, mode in (("one", "a", "x", U), ("two", "b", "x", R))
    )
    schedule = by_hand(
        ops,
        *(
            each
            for turn in range(2)
            for each in (
                Wait("a", "f", at(9)) if turn else Record("a", "f"),
                Run("a", f"one.{turn}"),
                Record("a", "e"),
                Wait("b", "e", at(8)),
                Run("b", f"two.{turn}"),
                Record("b", "f"),
            )
        ),
        Wait("a", "f", at(10)),
    )
    assert verify(schedule).redundant == ()
    assert "race" in faults(
        replace(
            schedule,
            instructions=tuple(
                each for each in schedule.instructions if getattr(each, "span", None) != at(9)
            ),
        )
    )


def test_scatters_of_one_step_and_exact_sums_need_no_order() -> None:
    for mode, buffer, step in ((Mode.SCATTER, "x", "s"), (Mode.ACCUMULATE, "n", "")):
        ops = (
            op("s/0", "a", (buffer, mode), step=step),
            op("s/1", "b", (buffer, mode), step=step),
        )
        if mode is Mode.ACCUMULATE:
            ops = tuple(replace(each, work=Kernel("sum", {})) for each in ops)
        run = (
            Record("a", "begin"),
            Wait("b", "begin"),
            Run("a", "s/0"),
            Run("b", "s/1"),
            Record("b", "end"),
            Wait("a", "end"),
        )
        verify(by_hand(ops, *run))
        apart = tuple(replace(each, step=each.name) for each in ops)
        if mode is Mode.SCATTER:
            assert "write-after-write" in faults(by_hand(apart, *run))


@pytest.mark.parametrize(
    ("work", "argument"),
    [
        (Kernel("greatest", {}, {"of": 1}, {"by": 2}), "a0"),
        (Kernel("sum", {}, {"of": 2}, {"by": 2}), "a0"),
        (Kernel("sum", {}, {"of": 1}, {"by": 3}), "a0"),
        (Kernel("sum", {}, {"of": 1}, {"by": 2}), "a1"),
        (Extern("m:f", "m:r"), "a0"),
        (Opaque(), "a0"),
    ],
)
def test_sums_of_different_functions_do_not_commute(work: Work, argument: str) -> None:
    one = replace(op("one", "a", ("n", ACC)), work=Kernel("sum", {}, {"of": 1}, {"by": 2}))
    two = replace(op("two", "b", ("n", ACC)), work=work)
    two = replace(two, accesses=(replace(two.accesses[0], argument=argument),))
    run = (
        Record("a", "begin"),
        Wait("b", "begin"),
        Run("a", "one"),
        Run("b", "two"),
        Record("b", "end"),
        Wait("a", "end"),
    )
    assert "nothing orders 'one' before 'two'" in faults(by_hand((one, two), *run))
    edges = infer_dependencies(Program("p", ("g0",), BUFFERS, (one, two))).edges
    assert list(edges.edges) == [("one", "two")]
    twin = replace(two, work=one.work, accesses=one.accesses)
    verify(by_hand((one, twin), *run))
    assert not infer_dependencies(Program("p", ("g0",), BUFFERS, (one, twin))).edges.edges
    alike = replace(twin, work=Extern("m:f", "m:r")), replace(one, work=Extern("m:f", "m:r"))
    verify(by_hand(alike, *run))


@pytest.mark.parametrize("counted", [False, True])
def test_buffers_over_the_same_memory_conflict(counted: bool) -> None:
    """By their exact bytes if both are fixed, else as wholes."""
    count = 1 if counted else 0
    buffers = {
        "base": Buffer("base", "g0", "u8", (8,), count, Role.STATE),
        "part": Buffer("part", "g0", "u8", (4,), overlay=("base", 4)),
    }
    low = Op("low", "low", "g0", Opaque(), (Access("a", Region("base", 0, 4), W),))
    high = Op("high", "high", "g0", Opaque(), (Access("a", Region("part", 0, 4), W),))
    program = Program("p", ("g0",), buffers, (low, high), 8 if counted else None, 8)
    instructions = (
        Record("a", "begin"),
        Wait("b", "begin"),
        Run("a", "low"),
        Run("b", "high"),
        Record("b", "end"),
        Wait("a", "end"),
    )
    schedule = Schedule(
        program, STREAMS, "a", instructions, (), separate(program), is_handwritten=True
    )
    if counted:
        assert "'high'" in faults(schedule)
    else:
        verify(schedule)


def test_scratch_that_shares_bytes_is_ordered_by_its_lifetimes() -> None:
    buffers = {name: Buffer(name, "g0", "u8", (8,)) for name in "pq"}
    ops = tuple(
        Op(
            f"{name}.{mode}",
            f"{name}.{mode}",
            "g0",
            Opaque(),
            (Access("a", Region(name, 0, 8), mode),),
        )
        for name in "pq"
        for mode in (W, R)
    )
    program = Program("p", ("g0",), buffers, ops)
    memory = Memory((Allocation("s", "g0", 8),), {name: Slot("s", 0) for name in "pq"})
    names = [each.name for each in ops]
    serial = Schedule(program, STREAMS, "a", tuple(Run("a", name) for name in names), (), memory)
    verify(serial)
    apart = (
        Record("a", "begin"),
        Wait("b", "begin"),
        *(Run("a", name) for name in names[:2]),
        *(Run("b", name) for name in names[2:]),
        Record("b", "end"),
        Wait("a", "end"),
    )
    with pytest.raises(CompilerBug, match="race"):
        verify(replace(serial, instructions=apart))
    chain = tuple(pairwise(names))
    verify(replace(serial, edges=chain), order="edges")
    with pytest.raises(CompilerBug, match="race"):
        verify(replace(serial, edges=(chain[0], chain[2])), order="edges")


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        ((Run("a", "one"), Run("a", "one"), Run("b", "two")), "runs twice"),
        ((Run("a", "one"),), "'two' never runs"),
        ((Run("a", "one"), Run("c", "two")), "runs on 'g0', but stream 'c'"),
        ((Run("a", "one"), Wait("b", "e"), Run("b", "two")), "before it is ever recorded"),
        ((Run("a", "one"), Run("b", "two"), Run("b", "three")), "no op 'three'"),
        ((Run("a", "one"), Run("d", "two")), "no stream 'd'"),
    ],
)
def test_what_cannot_be_issued_is_a_fault(
    instructions: tuple[Instruction, ...], message: str
) -> None:
    assert message in faults(by_hand(PAIR, *instructions))


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (Memory((), {}), "has no memory"),
        (
            Memory((Allocation("s", "g0", 8),), {"x": Slot("s", 4), "y": Slot("s", 0)}),
            "'x' lies outside of 's'",
        ),
        (
            Memory((Allocation("s", "g1", 64),), {"x": Slot("s", 8), "y": Slot("s", 0)}),
            "in memory of 'g1'",
        ),
    ],
)
def test_buffers_lie_in_memory_of_their_device(memory: Memory, message: str) -> None:
    assert message in faults(replace(forked(), memory=memory))


def test_a_region_lies_in_its_buffer() -> None:
    wide = Op("one", "one", "g0", Opaque(), (Access("a", Region("y", 0, 9), W),))
    assert "outside of buffer 'y'" in faults(by_hand((wide,), Run("a", "one")))


def test_an_edge_that_goes_back_is_a_fault() -> None:
    schedule = replace(forked(), is_handwritten=False, edges=(("two", "one"),))
    with pytest.raises(CompilerBug, match="goes back"):
        verify(schedule, order="edges")


def in_one_stream(roles: dict[str, Role], *ops: Op) -> Schedule:
    """The ops one after the other, on buffers that all lie on the same bytes."""
    buffers = {name: Buffer(name, "g0", "u8", (8,), role=role) for name, role in roles.items()}
    program = Program("p", ("g0",), buffers, ops)
    memory = Memory((Allocation("s", "g0", 8),), {name: Slot("s", 0) for name in roles})
    run = tuple(Run("a", each.name) for each in ops)
    edges = tuple(pairwise(each.name for each in ops))
    return Schedule(program, STREAMS, "a", run, edges, memory)


@pytest.mark.parametrize("order", ["streams", "edges"])
def test_order_alone_does_not_keep_what_another_buffer_overwrites(order: str) -> None:
    roles = dict.fromkeys("pq", Role.SCRATCH)
    ops = [op("p.w", "a", ("p", W)), op("q.w", "a", ("q", W)), op("p.r", "a", ("p", R))]
    with pytest.raises(CompilerBug, match="'p' and 'q' share memory, and both are in use at once"):
        verify(in_one_stream(roles, *ops), order=order)  # type: ignore[arg-type]
    verify(in_one_stream(roles, ops[0], ops[2], ops[1]), order=order)  # type: ignore[arg-type]


def test_what_a_buffer_with_a_role_keeps_is_nobody_elses() -> None:
    roles = {"p": Role.STATE, "q": Role.SCRATCH}
    ops = (op("p.u", "a", ("p", U)), op("q.w", "a", ("q", W)))
    with pytest.raises(CompilerBug, match="'q' lies in 's', which is for 'p' alone"):
        verify(in_one_stream(roles, *ops))


HALVES = (Fraction(0), Fraction(1, 2), Fraction(1))
THIRDS = (Fraction(0), Fraction(1, 3), Fraction(2, 3), Fraction(1))
ROWS = {
    "all": Rows(RowsKind.ALL),
    "gather": Rows(RowsKind.GATHER),
    "split": Rows(RowsKind.SPLIT),
    "pairs": Rows(RowsKind.SPLIT, 2),
    "piece": Rows(RowsKind.PIECE),
    "blocks": Rows(RowsKind.BLOCKS, 1, HALVES),
    "ring": Rows(RowsKind.RING, 2),
}


def cut_program(rows: Rows, per_count: int, work: Work = Kernel("k", {})) -> Program:  # noqa: B008
    """One op in three pieces, over 7 rows or a count of 7."""
    factor = rows.factor if rows.kind is RowsKind.SPLIT else 1
    is_ring = rows.kind is RowsKind.RING
    extent = 7 * (per_count or 1)
    wide = Buffer(
        "w",
        "g0",
        "f32",
        (6 * (per_count or 1) if is_ring else factor * extent, 2),
        0 if is_ring else factor * per_count,
        Role.INOUT,
    )
    flow = Buffer("x", "g0", "f32", (extent, 2), per_count, Role.INPUT)
    accesses = (
        Access("source", Region("x", 0, 0), R, Rows(RowsKind.SPLIT)),
        Access("target", Region("w", 0, 0), Mode.WRITE_SOME, rows),
    )
    axis = Axis(extent, per_count)
    whole = Op("o", "o", "g0", work, accesses, axis, placement=Placement(pieces=THIRDS))
    capacity = 7 if per_count else None
    return split_pieces(Program("p", ("g0",), {"w": wide, "x": flow}, (whole,), capacity))


def moved(program: Program, index: int, start: int, stop: int) -> Program:
    """The second access of one op with another region."""
    op = program.ops[index]
    region = Region("w", op["target"].region.start + start, op["target"].region.stop + stop)
    wrong = replace(op, accesses=(op.accesses[0], replace(op.accesses[1], region=region)))
    return replace(program, ops=(*program.ops[:index], wrong, *program.ops[index + 1 :]))


@pytest.mark.parametrize("per_count", [0, 1, 2])
@pytest.mark.parametrize("kind", ROWS)
def test_regions_are_worked_out_again(kind: str, per_count: int) -> None:
    program = cut_program(ROWS[kind], per_count)
    assert list(region_faults(program)) == []
    for index in range(3):
        for start, stop in ((0, -8), (0, 8), (4, 0)):
            (found,) = region_faults(moved(program, index, start, stop))
            assert found.code == "bad-schedule"
            assert f"'o/piece.{index}' touches w[" in found.message
            assert "by argument 'target'" in found.message


def test_a_region_that_hides_a_race_is_a_fault_of_the_proof() -> None:
    """As in a plan's file that somebody has changed."""
    program = cut_program(ROWS["split"], 0, Copy())
    run = tuple(Run("a", each.name) for each in program)
    verify(Schedule(program, STREAMS, "a", run, (), separate(program)))
    for wrong in (moved(program, 1, 0, -8), as_said(program)):
        with pytest.raises(CompilerBug, match=r"touches w\[\d+:\d+\] by argument 'target', but w"):
            verify(Schedule(wrong, STREAMS, "a", run, (), separate(program)))


def as_said(program: Program) -> Program:
    """A copy whose target is said to be all rows: what it touches does not hang on that."""
    said = cut_program(ROWS["all"], 0, Copy())
    return replace(program, ops=said.ops)


@pytest.mark.parametrize(
    "wrong",
    [
        {"piece": Piece(0, 3, Fraction(0), Fraction(1, 8))},  # no row of the nominal extent
        {"piece": Piece(0, 3, Fraction(2, 3), Fraction(1, 3))},
        {"piece": Piece(0, 3, Fraction(0), Fraction(4, 3))},
        {"axis": Axis(7, 2)},
        {"axis": Axis(14, 1)},
    ],
)
def test_rows_fit_the_piece_and_the_axis(wrong: dict[str, Any]) -> None:
    program = cut_program(ROWS["split"], 1)
    ops = (replace(program.ops[0], **wrong), *program.ops[1:])
    found = [each.message for each in region_faults(replace(program, ops=ops))]
    assert found
    assert "they do not fit its piece" in found[0]


def test_a_slot_has_room_for_its_piece() -> None:
    program = cut_program(ROWS["ring"], 1)
    small = replace(program.buffers["w"], shape=(4, 2))
    tight = replace(program, buffers={**program.buffers, "w": small})
    for index in range(3):
        start = 16 * (index % 2)
        tight = moved(tight, index, start - tight.ops[index]["target"].region.start, 0)
        stop = start + 16 - tight.ops[index]["target"].region.stop
        tight = moved(tight, index, 0, stop)
    found = [each.message for each in region_faults(tight)]
    assert len(found) == 3
    assert all("they do not fit its piece" in each for each in found)


def test_blocks_reach_over_the_piece() -> None:
    program = cut_program(Rows(RowsKind.BLOCKS, 1, HALVES), 1)
    short = Rows(RowsKind.BLOCKS, 1, HALVES[:2])
    ops = tuple(
        replace(op, accesses=(op.accesses[0], replace(op.accesses[1], rows=short)))
        for op in program
    )
    assert len(list(region_faults(replace(program, ops=ops)))) == 2
