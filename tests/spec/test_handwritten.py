"""Hand-written schedules: issued as written, proven or refused with the race by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphc.ir import HOST, MAPPED, Record, Role, Run, Schedule, Stream, Sync, Wait
from graphc.kernels.contract import Catalog
from graphc.resources import shipped
from graphc.spec.build import build
from graphc.spec.model import load_spec, parse_spec
from graphc.text.diagnostics import Span, SpecError
from graphc.text.load import parse_yaml
from graphc.verify import verify

HAND = shipped("specs") / "hand"
RIGHT = ("peer_pieces", "peer_whole")
WRONG = ("peer_pieces_missing_wait", "peer_pieces_no_rows_missing_wait")
SMALL = """
graphc: 1
name: by_hand
params: {pieces: {default: 3}, rounds: {default: 2}, back: {default: false}}
devices: [one, two]
buffers:
  a: {device: one, dtype: f32, shape: [7, 8], role: inout}
  base: {memory: mapped, dtype: u8, shape: [512]}
  h: {memory: mapped, dtype: f32, shape: [7, 8], at: {buffer: base, offset: 256}}
  b: {device: two, dtype: f32, shape: [7, 8], role: output}
ops:
  start: {updates: [a]}
  down: {reads: [a/split], writes: [h/split]}
  up: {reads: [h/split], writes: [b/split]}
  look: {reads: [h]}
schedule:
  streams: {s: one, t: two}
  issue:
    - for: {round: rounds}
      do:
        - s: [start]
        - for: {i: pieces}
          do:
            - s: ["down[i]", {record: "ev[i]"}]
            - t: [{wait: "ev[i]"}, "up[i]"]
        - t: [{record: done}]
        - s: [{wait: done}, {sync: host}]
        - host: [look]
        - if: back
          do: [s: [{record: more}]]
          else: [t: [{record: other}]]
"""


def schedule_of(text: str, **values: Any) -> Schedule:
    found = build(parse_spec(parse_yaml(text, "hand.yaml")), values, Catalog([]), {}).schedule
    assert found is not None
    return found


def shipped_schedule(name: str, **values: Any) -> Schedule:
    found = build(load_spec(HAND / f"{name}.yaml"), values, Catalog([]), {}).schedule
    assert found is not None
    return found


def codes(text: str) -> set[str]:
    with pytest.raises(SpecError) as caught:
        schedule_of(text)
    return {each.code for each in caught.value.diagnostics}


def test_instructions_stand_in_issue_order_and_nothing_is_added() -> None:
    found = schedule_of(SMALL, rounds=1, pieces=2)
    assert [(each.kind, each.stream) for each in found.instructions] == [
        ("run", "s"),
        *(("run", "s"), ("record", "s"), ("wait", "t"), ("run", "t")) * 2,
        ("record", "t"),
        ("wait", "s"),
        ("sync", "s"),
        ("run", HOST),
        ("record", "t"),
    ]
    assert found.is_handwritten
    assert found.origin == "s"
    assert found.streams == (Stream("s", "one"), Stream("t", "two"), Stream(HOST, HOST))
    assert schedule_of(SMALL, rounds=1, back=True).instructions[-1] == Record(
        "s", "more", Span("hand.yaml", 30, 20, 14)
    )


def test_every_instruction_keeps_its_place() -> None:
    lines = SMALL.splitlines()
    for each in schedule_of(SMALL).instructions:
        written = lines[each.span.line - 1][each.span.column - 1 :][: each.span.length]
        match each:
            case Run():
                assert written.strip('"').partition("[")[0] in each.op
            case Record() | Wait():
                assert each.kind in written
            case Sync():
                assert written == "{sync: host}"


def test_a_piece_is_its_share_of_the_rows() -> None:
    found = schedule_of(SMALL)
    ops = {each.name: each for each in found.program}
    assert list(ops)[:2] == ["round.0/start", "round.0/down/piece.0"]
    down = [ops[f"round.1/down/piece.{i}"] for i in range(3)]
    assert [(each["a"].region.start, each["a"].region.stop) for each in down] == [
        (0, 64),
        (64, 128),
        (128, 224),
    ]
    assert ops["round.0/start"]["a"].region.stop == 224
    assert "round.0/down" in {each.name for each in schedule_of(SMALL, pieces=1).program}


def test_overlays_lie_in_their_bases_and_all_else_alone() -> None:
    memory = schedule_of(SMALL).memory
    assert (memory.slots["h"].allocation, memory.slots["h"].offset) == ("base", 256)
    assert {each.name for each in memory.allocations} == {"a", "base", "b"}
    assert next(e for e in memory.allocations if e.name == "base").device == MAPPED


def test_roles_and_mapped_neighbours_are_kept() -> None:
    buffers = schedule_of(SMALL).program.buffers
    assert buffers["a"].role is Role.INOUT
    assert buffers["h"].near == ("one", "two")


@pytest.mark.parametrize(
    ("right", "wrong", "code"),
    [
        ("- s: [start]", "- u: [start]", "unknown-stream"),
        ("- s: [start]", "- s: [stat]", "unknown-op"),
        ("- s: [start]", "- s: [start, start]", "duplicate-name"),
        ("- s: [start]", "- t: [start]", "wrong-device"),
        ("- s: [start]", "- host: [start]", "wrong-device"),
        ("- s: [start]", "- s: start", "bad-issue"),
        ("- s: [start]", "- start", "bad-issue"),
        ("- s: [start]", "- {s: [start], t: []}", "bad-issue"),
        ("- s: [start]", "- s: [[start]]", "bad-issue"),
        ("- s: [start]", "- s: [down]", "bad-rows"),
        ("{wait: done}", "{wait: don}", "unrecorded-event"),
        ("{wait: done}", "{weit: done}", "unknown-field"),
        ("{wait: done}", "{wait: [done]}", "bad-issue"),
        ("{sync: host}", "{sync: one}", "bad-issue"),
        ("- host: [look]", "- host: [{record: x}]", "bad-issue"),
        ('{wait: "ev[i]"}', '{wait: "ev[i + 1]"}', "unrecorded-event"),
        ('"up[i]"', '"up[i + 1]"', "bad-issue"),
        ('"up[i]"', '"up[0]"', "bad-issue"),
        ('"up[i]"', '"up[j]"', "unknown-name"),
        ("for: {i: pieces}", "for: {i: piecs}", "unknown-name"),
        ("for: {i: pieces}", "for: pieces", "bad-issue"),
        ("for: {i: pieces}", "for: {round: pieces}", "bad-name"),
        ("for: {i: pieces}", "for: {i: 10000000}", "too-many-ops"),
        ("- if: back", "- if: bak", "unknown-name"),
        ("else: [t", "els: [t", "unknown-field"),
        ("streams: {s: one", "streams: {s: won", "unknown-device"),
        ("streams: {s: one", "streams: {host: one, s: one", "bad-name"),
        ("reads: [h/split]", "reads: [hh/split]", "unknown-buffer"),
        ("reads: [h/split]", "reads: [h/spilt]", "bad-rows"),
        ("reads: [h/split]", "raeds: [h/split]", "unknown-field"),
        ("offset: 256", "offset: 320", "bad-overlay"),
        ("start: {updates: [a]}", "start: {updates: [a], reads: [b]}", "read-before-write"),
        ("start: {updates: [a]}", "start: {updates: [a], device: two}", "wrong-device"),
    ],
)
def test_wrong_schedules_are_refused(right: str, wrong: str, code: str) -> None:
    assert right in SMALL
    assert code in codes(SMALL.replace(right, wrong, 1))


def test_all_mistakes_are_named_at_once() -> None:
    text = SMALL.replace("[start]", "[stat]").replace("wait: done", "wait: dun")
    text = text.replace("reads: [h]", "reads: [g]")
    assert codes(text) == {"unknown-op", "unrecorded-event", "unknown-buffer"}


def test_an_op_may_say_that_it_reaches_over() -> None:
    text = SMALL.replace("start: {updates: [a]}", "start: {updates: [a], device: two}")
    found = schedule_of(text.replace("- s: [start]", "- t: [start]"))
    assert next(iter(found.program)).device == "two"


@pytest.mark.parametrize("peer_rows", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_shipped_schedules_are_proven(name: str, peer_rows: bool) -> None:
    proof = verify(shipped_schedule(name, peer_rows=peer_rows))
    assert proof.ops > 0
    # The host has waited for what this wait is for; it is reported, not refused.
    assert len(proof.redundant) == int(peer_rows)


@pytest.mark.parametrize("pieces", [1, 2, 3, 8, 64, 100])
def test_the_proof_holds_for_any_number_of_pieces(pieces: int) -> None:
    verify(shipped_schedule("peer_pieces", pieces=pieces, layers=2))


@pytest.mark.parametrize("name", WRONG)
def test_schedules_that_are_wrong_on_purpose_say_so_and_are_refused(name: str) -> None:
    assert "WRONG ON PURPOSE" in (HAND / f"{name}.yaml").read_text()
    with pytest.raises(SpecError, match="race") as caught:
        verify(shipped_schedule(name))
    assert all(each.span.file.endswith(f"{name}.yaml") for each in caught.value.diagnostics)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schedule_is_a_right_one_without_one_wait(name: str) -> None:
    right = (HAND / "peer_pieces.yaml").read_text().splitlines()
    wrong = (HAND / f"{name}.yaml").read_text().splitlines()
    start = right.index("schedule:"), wrong.index("schedule:")
    pairs = zip(right[start[0] :], wrong[start[1] :], strict=True)
    changed = [(a, b) for a, b in pairs if a != b]
    assert len(changed) == 1
    assert changed[0][0].count("wait:") == changed[0][1].count("wait:") + 1


@pytest.mark.parametrize("peer_rows", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_every_wait_is_needed_or_reported_redundant(name: str, peer_rows: bool) -> None:
    schedule = (
        shipped_schedule(name, peer_rows=peer_rows, layers=2, pieces=2)
        if (name == "peer_pieces")
        else shipped_schedule(name, peer_rows=peer_rows, layers=2)
    )
    redundant = verify(schedule).redundant
    places = {each.span for each in schedule.instructions if isinstance(each, Wait | Sync)}
    assert places
    for place in sorted(places):
        without = replace(
            schedule,
            instructions=tuple(each for each in schedule.instructions if each.span != place),
        )
        if place in redundant:
            verify(without)
        else:
            with pytest.raises(SpecError, match="race"):
                verify(without)


def test_every_shipped_hand_file_is_known_here() -> None:
    assert {path.stem for path in Path(HAND).glob("*.yaml")} == {*RIGHT, *WRONG}
