"""The proof of units, signals, handshakes and entries: what races, and what makes no sense."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from all_to_all import MOVE, PREPARE, layer
from unit_oracles import demands, is_ordered

from graphc.ir import (
    MAPPED,
    Access,
    Allocation,
    Await,
    Awaited,
    Begin,
    Buffer,
    Instruction,
    LaunchContract,
    Memory,
    Mode,
    Op,
    Opaque,
    Program,
    Record,
    Role,
    Run,
    Schedule,
    Signal,
    Signalling,
    Slot,
    Stream,
    Unit,
    Wait,
    Work,
)
from graphc.passes.plan_memory import separate
from graphc.regions import Region
from graphc.text.diagnostics import CompilerBug
from graphc.verify import verify
from graphc.verify.trace import trace_launches

FREE, JOINED = LaunchContract.FREE, LaunchContract.JOINED
R, W, U = Mode.READ, Mode.WRITE, Mode.UPDATE
BUFFERS = {
    "x": Buffer("x", "g0", "u8", (8,), role=Role.INPUT),
    "m": Buffer("m", "g1", "u8", (8,)),
    "n": Buffer("n", "g0", "u8", (8,)),
    "y": Buffer("y", "g0", "u8", (8,), role=Role.OUTPUT),
    "s": Buffer("s", "g0", "u8", (8,), role=Role.STATE),
    "h": Buffer("h", MAPPED, "u8", (8,), role=Role.INOUT),
}
UNITS = (Unit("left", ("g0",), "a"), Unit("right", ("g1",), "b"))
STREAMS = (Stream("a", "g0"), Stream("b", "g1"), Stream("c", "g1"))


def op(name: str, stream: str, *accesses: tuple[str, Mode]) -> tuple[str, Op]:
    touched = tuple(
        Access(f"a{index}", Region(buffer, 0, 8), mode)
        for index, (buffer, mode) in enumerate(accesses)
    )
    return stream, Op(name, name, device(stream), Opaque(), touched)


def device(stream: str) -> str:
    return "g0" if stream == "a" else "g1"


def work(name: str, stream: str, what: Work) -> tuple[str, Op]:
    return stream, Op(name, name, device(stream), what, ())


def begin(stream: str) -> tuple[str, Op]:
    return work(f"{stream}/begin", stream, Begin())


def signal(name: str, stream: str, *to: str, entry: str = "step") -> tuple[str, Op]:
    default = ("right",) if stream == "a" else ("left",)
    return work(f"{entry}.signal/{name}", stream, Signal(f"{entry}/{name}", to or default))


def hear(
    stream: str, *names: str, entry: str = "step", handshake: bool = False, unit: str = ""
) -> tuple[str, Op]:
    unit = unit or ("right" if stream == "a" else "left")
    awaited = tuple(Awaited(f"{entry}/{name}", unit, entry, handshake) for name in names)
    return work(f"await/{','.join(names)}/{stream}/{handshake}/{unit}", stream, Await(awaited))


def divided(
    *steps: tuple[str, Op] | Instruction,
    launch: LaunchContract = FREE,
    entry: str = "step",
    edges: Sequence[tuple[str, str]] = (),
    buffers: dict[str, Buffer] = BUFFERS,
) -> Schedule:
    ops = tuple(each[1] for each in steps if isinstance(each, tuple))
    run = (Run(each[0], each[1].name) if isinstance(each, tuple) else each for each in steps)
    program = Program("hand", ("g0", "g1"), buffers, ops, entry=entry)
    return Schedule(
        program, STREAMS, "a", tuple(run), tuple(edges), separate(program), units=UNITS,
        launch=launch,
    )  # fmt: skip


def faults(*schedules: Schedule, order: str = "streams") -> str:
    with pytest.raises(CompilerBug) as caught:
        verify(schedules, order=order)  # type: ignore[arg-type]
    return caught.value.message


BOTH = (begin("a"), begin("b"))
SEND = op("send", "a", ("x", R), ("m", W))  # the left unit writes memory of the right
USE = op("use", "b", ("m", R))


# Barriers


def test_a_missing_barrier_is_a_race_that_names_units_ops_bytes_and_a_signal() -> None:
    found = faults(divided(*BOTH, SEND, USE, launch=JOINED))
    assert "race: 'use' and 'send' touch m[0:8] (read-after-write)" in found
    assert "and nothing orders 'send' before 'use'" in found
    assert "'send' touches m[0:8] (write) on stream 'a' in unit 'left'" in found
    assert "hint: signal unit 'right' after 'send' and await it before 'use'" in found


def test_a_signal_at_hand_is_the_smallest_mend() -> None:
    found = faults(divided(*BOTH, SEND, signal("send", "a"), USE, launch=JOINED))
    assert "hint: await signal 'step/send' before 'use'" in found


@pytest.mark.parametrize("order", ["streams", "edges"])
def test_a_signal_and_an_await_mend_it(order: str) -> None:
    schedule = divided(
        *BOTH,
        SEND,
        signal("send", "a"),
        hear("b", "send"),
        USE,
        launch=JOINED,
        edges=[
            ("a/begin", "send"),
            ("send", "step.signal/send"),
            ("b/begin", "await/send/b/False/left"),
            ("await/send/b/False/left", "use"),
        ],
    )
    proof = verify(schedule, order=order)  # type: ignore[arg-type]
    assert (proof.units, proof.signals, proof.awaits, proof.handshakes) == (2, 1, 1, 0)


def test_an_await_tells_nothing_of_what_was_done_after_the_signal() -> None:
    found = faults(divided(*BOTH, signal("send", "a"), SEND, hear("b", "send"), USE, launch=JOINED))
    assert "nothing orders 'send' before 'use'" in found


def test_without_the_edge_to_an_await_the_nodes_race() -> None:
    edges = [("a/begin", "send"), ("send", "step.signal/send"), ("b/begin", "use")]
    edges.append(("b/begin", "await/send/b/False/left"))
    schedule = divided(
        *BOTH, SEND, signal("send", "a"), hear("b", "send"), USE, launch=JOINED, edges=edges
    )
    verify(schedule)
    assert "add the edge" not in faults(schedule, order="edges")
    assert "nothing orders 'send' before 'use'" in faults(schedule, order="edges")


# Handshakes


SENT = (*BOTH, SEND, signal("send", "a"), hear("b", "send"), USE)


def test_a_missing_handshake_is_a_race_with_the_launch_before() -> None:
    verify(divided(*SENT, launch=JOINED))
    found = faults(divided(*SENT))
    assert "'send' and 'use' of the replay before touch m[0:8] (write-after-read)" in found
    hint = "a handshake: signal unit 'left' after 'use' and await it before 'send'"
    assert f"hint: {hint} in the launch after" in found


def test_a_handshake_mends_it() -> None:
    shaken = (
        *BOTH,
        hear("a", "use", handshake=True),
        SEND,
        signal("send", "a"),
        hear("b", "send"),
        USE,
        signal("use", "b"),
    )
    proof = verify(divided(*shaken))
    assert (proof.signals, proof.awaits, proof.handshakes) == (2, 1, 1)
    early = (*shaken[:5], signal("use", "b"), USE)
    assert "'use' of the replay before" in faults(divided(*early))


@pytest.mark.parametrize("launch", [FREE, JOINED])
def test_a_handshake_knows_nothing_of_its_own_launch(launch: LaunchContract) -> None:
    """Though its signal may have come already, it does not wait for that."""
    awaits = hear("b", "send", handshake=True)
    found = faults(divided(*BOTH, SEND, signal("send", "a"), awaits, USE, launch=launch))
    assert "'use' and 'send' touch m[0:8] (read-after-write)" in found


def test_a_handshake_knows_the_entry_that_it_names_and_no_other() -> None:
    """What `other` reads last must be heard of, too: it may be launched between."""
    step = divided(
        *BOTH,
        hear("a", "use", handshake=True),
        SEND,
        signal("send", "a"),
        hear("b", "send"),
        USE,
        signal("use", "b"),
    )
    other = divided(
        *BOTH, op("look", "b", ("m", R)), signal("look", "b", entry="other"), entry="other"
    )
    verify(other)
    found = faults(step, other)
    assert "'send' and 'look' of 'other' before touch m[0:8] (write-after-read)" in found
    assert "a handshake: await signal 'other/look' before 'send' in the launch after" in found
    two = hear("a", "use", handshake=True), hear("a", "look", entry="other", handshake=True)
    both = divided(
        *BOTH,
        *two,
        SEND,
        signal("send", "a"),
        hear("b", "send"),
        USE,
        signal("use", "b"),
    )
    assert verify([both, other]).handshakes == 2


def test_a_barrier_both_ways_needs_no_handshake() -> None:
    """As the peer layer with its return: what comes back orders the next launch."""
    back = op("back", "b", ("m", R), ("n", W))
    end = op("end", "a", ("n", R), ("y", W))
    steps = (*SENT[:5], back, signal("back", "b"), hear("a", "back"), end)
    assert verify(divided(*steps)).handshakes == 0


# The caller


def test_beside_a_unit_its_caller_writes_inputs_and_reads_outputs() -> None:
    peek = op("peek", "b", ("x", R))
    found = faults(divided(*BOTH, peek))
    assert "the caller of unit 'left', before the launch" in found
    assert "signal unit 'right' as 'left' begins and await it before 'peek'" in found
    verify(divided(*BOTH, peek, launch=JOINED))
    begun = (*BOTH, signal("begun", "a"), hear("b", "begun"), peek)
    found = faults(divided(*begun))
    assert "'peek' of the replay before touch x[0:8] (write-after-read)" in found
    assert "signal unit 'left' after 'peek' and let it await that before it ends" in found
    verify(divided(*begun, signal("peek", "b"), hear("a", "peek")))


def test_an_output_is_awaited_before_its_unit_ends() -> None:
    fill = op("fill", "b", ("y", W))
    begun = (*BOTH, signal("begun", "a"), hear("b", "begun"), fill)
    found = faults(divided(*begun))
    assert "the caller of unit 'left', afterwards" in found
    verify(divided(*begun, signal("fill", "b"), hear("a", "fill")))


@pytest.mark.parametrize("name", ["s", "h"])
def test_state_and_mapped_memory_are_the_callers_when_all_units_are_idle(name: str) -> None:
    verify(divided(*BOTH, op("keep", "b", (name, U))))


# Entries


def test_scratch_of_two_entries_meets_by_its_bytes() -> None:
    buffers = {**BUFFERS, "p": Buffer("p", "g1", "u8", (16,)), "q": Buffer("q", "g1", "u8", (16,))}

    def entry(name: str, buffer: str, stream: str, offset: int) -> Schedule:
        made = divided(
            *BOTH, op(f"touch {buffer}", stream, (buffer, U)), entry=name, buffers=buffers
        )
        arena = Allocation("arena", "g1", 24)
        slots = {**made.memory.slots, buffer: Slot("arena", offset)}
        return replace(made, memory=Memory((*made.memory.allocations, arena), slots))

    one = entry("one", "p", "a", 0)
    found = faults(one, entry("two", "q", "b", 4))
    assert "'touch q' and 'touch p' of 'one' before touch q[0:4]" in found
    verify([one, entry("two", "q", "b", 8)])
    verify([one, entry("two", "q", "a", 4)])
    found = faults(one, entry("two", "p", "b", 0))
    assert "'touch p' of 'one' before" in found


def in_one_arena(*steps: tuple[str, Op] | Instruction) -> Schedule:
    """With two buffers of the right unit on the same bytes."""
    buffers = {**BUFFERS, "p": Buffer("p", "g1", "u8", (8,)), "q": Buffer("q", "g1", "u8", (8,))}
    made = divided(*BOTH, *steps, buffers=buffers)
    slots = {**made.memory.slots, "p": Slot("arena", 0), "q": Slot("arena", 0)}
    arena = Allocation("arena", "g1", 8)
    return replace(made, memory=Memory((*made.memory.allocations, arena), slots))


def test_scratch_shares_bytes_launch_after_launch() -> None:
    """A buffer is done with at the end of each launch, not of the last."""
    first, second = op("p", "b", ("p", U)), op("q", "b", ("q", U))
    verify(in_one_arena(first, second))
    crossed = (op("p.w", "b", ("p", W)), second, op("p.r", "b", ("p", R)))
    assert "'p' and 'q' share memory, and both are in use at once" in faults(in_one_arena(*crossed))


def test_what_gave_way_to_a_buffer_may_meet_it_in_the_next_launch() -> None:
    """The left unit is a launch ahead: it writes `p` while the right one still writes `q`."""
    begun = (signal("begun", "a"), hear("b", "begun"))
    found = faults(in_one_arena(op("p", "a", ("p", W)), *begun, op("q", "b", ("q", W))))
    assert "'p' and 'q' of the replay before touch p[0:8] (write-after-write)" in found


def test_entries_with_other_pieces_meet_at_one_extent() -> None:
    """A half at the nominal extent of 2 is rows 3 to 6 at that of 6."""
    rows = {"w": Buffer("w", "g1", "u8", (6,), 1)}

    def entry(name: str, stream: str, nominal: int, start: int, stop: int) -> Schedule:
        access = Access("a", Region("w", start, stop), U)
        touch = Op(f"touch {name}", f"touch {name}", device(stream), Opaque(), (access,))
        made = divided(*BOTH, (stream, touch), entry=name, buffers=rows)
        return replace(made, program=replace(made.program, capacity=6, nominal=nominal))

    low = entry("low", "a", 6, 0, 3)
    verify([low, entry("high", "b", 8, 4, 8)])
    assert "nothing orders" in faults(low, entry("high", "b", 8, 3, 8))


def joined_entries() -> tuple[Schedule, Schedule]:
    return divided(*SENT, launch=JOINED), divided(*BOTH, launch=JOINED, entry="other")


def test_allocations_of_one_name_are_one_memory() -> None:
    step, other = joined_entries()
    verify([step, other])
    larger = tuple(
        replace(each, nbytes=99) if each.name == "s" else each for each in other.memory.allocations
    )
    memory = replace(other.memory, allocations=larger)
    assert "allocation 's' is another in 'other'" in faults(step, replace(other, memory=memory))


def test_what_outlives_a_launch_is_the_same_buffer_in_all_entries() -> None:
    step, other = joined_entries()
    slots = {**other.memory.slots, "s": Slot("x", 0)}
    moved = replace(other, memory=replace(other.memory, slots=slots))
    assert "buffer 's' is another in 'other'" in faults(step, moved)
    narrow = {**BUFFERS, "s": replace(BUFFERS["s"], dtype="i8")}
    cast = replace(other, program=replace(other.program, buffers=narrow))
    assert "buffer 's' is another in 'other'" in faults(step, cast)


def test_entries_fit_together() -> None:
    step, other = joined_entries()
    assert "two schedules of entry 'step'" in faults(step, step)
    assert "launched in another way" in faults(step, replace(other, launch=FREE))
    assert "signals in another way" in faults(step, replace(other, sync=Signalling.MEMOPS))
    swapped = (replace(UNITS[0], devices=("g1",)), replace(UNITS[1], devices=("g0",)))
    found = faults(step, replace(other, units=swapped))
    assert "unit 'left' of 'other' has other devices" in found
    alone = replace(divided(op("alone", "a"), entry="other"), units=())
    assert "'g0' belongs to unit 'left' in 'step', to 'all' in 'other'" in faults(step, alone)


# What makes no sense


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((*BOTH, SEND, hear("b", "none"), USE), "'step/none', which 'step' does not send"),
        (
            (*BOTH, SEND, signal("send", "a", "elsewhere"), hear("b", "send"), USE),
            "'step/send', which is not sent to unit 'right'",
        ),
        ((*BOTH, SEND, signal("send", "a", "elsewhere"), USE), "'elsewhere', which is no unit"),
        ((*BOTH, SEND, signal("send", "a", "left"), USE), "signals its own unit"),
        (
            (*BOTH, SEND, hear("b", "send"), USE, signal("send", "a")),
            "'step/send', which 'step.signal/send' sends later",
        ),
        (
            (*BOTH, SEND, signal("send", "a"), hear("a", "send", unit="left"), USE),
            "'step/send', which its own unit sends",
        ),
        (
            (*BOTH, SEND, signal("send", "a"), hear("b", "send", unit="right"), USE),
            "'step/send', which unit 'left' sends, not 'right'",
        ),
        (
            (*BOTH, signal("s", "a"), work("again", "a", Signal("step/s", ("right",)))),
            "signal 'step/s' is sent twice, by 'step.signal/s' and 'again'",
        ),
        ((begin("a"), SEND), "unit 'right' does not begin"),
        ((*BOTH, work("again", "a", Begin())), "unit 'left' begins twice"),
        ((begin("b"), op("first", "a"), begin("a")), "unit 'left' runs 'first' before 'a/begin'"),
        ((*BOTH, Record("a", "e"), Wait("b", "e")), "'b' of unit 'right' waits for event 'e' of"),
    ],
)
def test_signals_events_and_beginnings_make_sense(
    steps: tuple[tuple[str, Op], ...], message: str
) -> None:
    assert message in faults(divided(*steps))


def test_a_handshake_may_be_issued_before_its_signal_but_must_exist() -> None:
    awaits = hear("b", "send", handshake=True)
    verify(divided(*BOTH, awaits, signal("send", "a")))
    assert "which 'step' does not send" in faults(divided(*BOTH, awaits))
    awaits = hear("b", "send", entry="gone", handshake=True)
    assert "which 'gone' does not send" in faults(divided(*BOTH, awaits, signal("send", "a")))


def test_a_signal_of_another_entry_comes_by_handshake_only() -> None:
    step = divided(*BOTH, hear("b", "send", entry="other"), launch=JOINED)
    other = divided(*BOTH, signal("send", "a", entry="other"), entry="other", launch=JOINED)
    assert "another entry sends, 'other', and not in this launch" in faults(step, other)


def test_what_runs_before_its_unit_has_begun_is_a_race() -> None:
    steps = (
        Record("b", "start"),
        Wait("c", "start"),
        *BOTH,
        op("early", "c"),
        Record("c", "end"),
        Wait("b", "end"),
    )
    found = faults(divided(*steps, launch=JOINED))
    assert "'early' may run before 'b/begin' has counted the launch of unit 'right'" in found
    assert "hint: order it behind 'b/begin'" in found


@pytest.mark.parametrize("launch", [FREE, JOINED])
def test_every_stream_joins_the_origin_of_its_unit(launch: LaunchContract) -> None:
    steps = (*BOTH, Record("b", "fork"), Wait("c", "fork"), op("late", "c"))
    found = faults(divided(*steps, launch=launch))
    assert "'late' on stream 'c' may still run after the launch has ended" in found
    verify(divided(*steps, Record("c", "join"), Wait("b", "join"), launch=launch))


def test_units_have_devices_and_streams_of_their_own() -> None:
    schedule = divided(*BOTH)
    shared = (replace(UNITS[0], devices=("g0", "g1")), UNITS[1])
    assert "units 'left' and 'right' share device 'g1'" in faults(replace(schedule, units=shared))
    found = faults(replace(schedule, units=UNITS[:1]))
    assert "stream 'b' of 'g1' belongs to no unit" in found
    assert "'b/begin' runs on 'g1', which belongs to no unit" in found
    moved = (UNITS[0], replace(UNITS[1], origin="a"))
    found = faults(replace(schedule, units=moved))
    assert "unit 'right' begins on 'a', which is no stream of it" in found
    twice = (UNITS[0], replace(UNITS[1], name="left"))
    assert "two units 'left'" in faults(replace(schedule, units=twice))


def test_an_edge_stays_within_its_unit() -> None:
    edges = [("a/begin", "send"), ("b/begin", "use"), ("send", "use")]
    schedule = divided(*BOTH, SEND, USE, launch=JOINED, edges=edges)
    assert "edge 'send' -> 'use' leads from one unit to another" in faults(schedule, order="edges")


def test_flags_are_taken_down_before_the_next_launch() -> None:
    schedule = replace(divided(*SENT, launch=JOINED), sync=Signalling.MEMOPS)
    verify(schedule)
    found = faults(replace(schedule, launch=FREE))
    assert "flags that are taken down again (sync: memops) may be put up before they are" in found


def test_flags_tell_nothing_of_the_launch_before() -> None:
    """The first launch would wait for ever."""
    schedule = divided(*BOTH, hear("b", "s", handshake=True), signal("s", "a"), launch=JOINED)
    verify(schedule)
    found = faults(replace(schedule, sync=Signalling.MEMOPS))
    assert "awaits signal 'step/s', of the launch before, of which flags" in found


def test_signals_speak_of_units() -> None:
    schedule = replace(divided(*SENT), units=())
    assert "'a/begin' speaks of units, but the schedule is not divided" in faults(schedule)


# All to all


@pytest.mark.parametrize("launch", [FREE, JOINED])
@pytest.mark.parametrize("ranks", [2, 3, 64])
def test_dispatch_and_combine_take_three_barriers_and_no_handshake(
    ranks: int, launch: LaunchContract
) -> None:
    schedule = layer(ranks, launch)
    proof = verify(schedule)
    assert proof.signals == 3 * ranks
    assert proof.awaits == 3 * ranks * (ranks - 1)
    assert proof.handshakes == 0
    assert len(trace_launches([schedule] * 2, "streams").tails) <= 2 * ranks + 1


@pytest.mark.parametrize("number", [2, 5, 7])
def test_a_missing_barrier_names_the_ranks(number: int) -> None:
    steps = [*PREPARE, *MOVE]
    assert steps.pop(number) == "|"
    found = faults(layer(3, FREE, steps=tuple(steps)))
    pair = (
        rf"'rank.(\d)/{steps[number]} \(rank \1\)' and 'rank.(\d)/{steps[number - 1]} \(rank \2\)'"
    )
    assert re.search(rf"{pair} touch rank.\d/", found)


def test_explicit_preparation_takes_handshakes_where_a_buffer_is_shared() -> None:
    """Dispatch overwrites what others still gather, unless that lies elsewhere."""
    verify(layer(3, FREE, steps=MOVE))
    found = faults(layer(3, FREE, steps=MOVE, is_shared=True))
    assert "'rank.1/dispatch (rank 1)' and 'rank.0/combine (rank 0)' of the replay before" in found
    assert "a handshake: signal unit 'gpu1' after 'rank.0/combine'" in found
    verify(layer(3, JOINED, steps=MOVE, is_shared=True))


def test_a_scatter_is_apart_from_those_of_other_ranks_in_its_launch_only() -> None:
    assert "write-after-write" in faults(layer(2, FREE, steps=("dispatch",)))
    verify(layer(2, JOINED, steps=("dispatch",)))
    strangers = layer(2, JOINED, steps=("dispatch",))
    ops = tuple(replace(each, family="") for each in strangers.program.ops)
    apart = replace(strangers, program=replace(strangers.program, ops=ops))
    assert "'rank.1/dispatch' and 'rank.0/dispatch' touch rank.0/recv" in faults(apart)


def test_regions_of_peers_are_worked_out_again() -> None:
    schedule = layer(2, JOINED)
    ops = list(schedule.program.ops)
    index = next(n for n, each in enumerate(ops) if each.name == "rank.1/exchange")
    for start, stop in ((0, 16), (0, 32), (16, 28)):
        accesses = [
            replace(each, region=Region(each.region.buffer, start, stop))
            if each.peer == 0
            else each
            for each in ops[index].accesses
        ]
        wrong = [*ops[:index], replace(ops[index], accesses=tuple(accesses)), *ops[index + 1 :]]
        damaged = replace(schedule, program=replace(schedule.program, ops=tuple(wrong)))
        found = faults(damaged)
        assert "'rank.1/exchange' touches rank.0/counts[16:32] by argument 'counts'" in found


@pytest.mark.parametrize("is_shared", [False, True])
def test_each_signal_of_a_barrier_counts_as_all_pairs_say(is_shared: bool) -> None:
    schedule = layer(3, FREE, steps=(*PREPARE, *MOVE), is_shared=is_shared)
    pairs = demands([schedule] * 3)
    objected = 0
    for place, awaiting in enumerate(schedule.program.ops):
        if not isinstance(awaiting.work, Await):
            continue
        for gone in awaiting.work.signals:
            rest = tuple(each for each in awaiting.work.signals if each != gone)
            ops = list(schedule.program.ops)
            ops[place] = replace(awaiting, work=Await(rest))
            less = replace(schedule, program=replace(schedule.program, ops=tuple(ops)))
            if is_ordered([less] * 3, pairs):
                verify(less)
            else:
                assert "nothing orders" in faults(less)
                objected += 1
    assert objected == 18
