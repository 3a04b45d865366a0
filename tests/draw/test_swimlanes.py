"""What the picture of a schedule holds."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from peer_example import peer_schedule

from graphc.draw.palette import styles
from graphc.draw.swimlanes import MAX_PLOT, swimlanes
from graphc.draw.timeline import timeline
from graphc.ir import Schedule

SVG = "{http://www.w3.org/2000/svg}"


def tooltips(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}title")]


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("pieces", [1, 8, 64])
def test_every_op_has_a_box_and_every_wait_between_ops_an_arrow(pieces: int) -> None:
    schedule = peer_schedule(pieces)
    root = ElementTree.fromstring(swimlanes(schedule))
    named = {tip.splitlines()[0] for tip in tooltips(root) if "\n" in tip}
    assert named == {op.name for op in schedule.program}
    arrows = [tip for tip in tooltips(root) if " waits for " in tip]
    assert len(arrows) == len(timeline(schedule).arrows)


def test_lanes_are_named_and_the_title_tells_route_and_pieces() -> None:
    drawn = texts(ElementTree.fromstring(swimlanes(peer_schedule(8), title="moe: route p2p")))
    assert "moe: route p2p" in drawn
    assert any("mix 8" in each for each in drawn)
    assert {"primary", "peer", "0 (origin)", "activations.down"} <= set(drawn)


def test_pieces_are_numbered_where_their_box_has_room() -> None:
    drawn = texts(ElementTree.fromstring(swimlanes(peer_schedule(8))))
    assert "7" in drawn or "up 7" in drawn


def test_the_width_grows_with_the_pieces_and_ends_somewhere() -> None:
    widths = [
        float(ElementTree.fromstring(swimlanes(peer_schedule(n))).attrib["width"])
        for n in (1, 64, 128)
    ]
    assert widths[0] < widths[1] <= MAX_PLOT + 400
    assert widths[2] <= MAX_PLOT + 400


def test_a_schedule_always_draws_the_same() -> None:
    assert swimlanes(peer_schedule(3)) == swimlanes(peer_schedule(3))


def test_the_picture_needs_nothing_from_elsewhere() -> None:
    drawn = swimlanes(peer_schedule(3)).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in drawn
    assert "href" not in drawn


def test_names_are_escaped() -> None:
    root = ElementTree.fromstring(swimlanes(peer_schedule(1), title="a < b & c"))
    assert "a < b & c" in texts(root)


def test_a_schedule_without_ops_is_an_empty_picture() -> None:
    full = peer_schedule(1)
    empty: Schedule = replace(
        full, program=replace(full.program, ops=()), instructions=(), edges=()
    )
    assert ElementTree.fromstring(swimlanes(empty)).tag == f"{SVG}svg"


def test_measured_times_are_said_to_be_measured() -> None:
    schedule = peer_schedule(1)
    measured = {box.op: (box.start_us, box.stop_us) for box in timeline(schedule).boxes}
    assert "(measured)" in swimlanes(schedule, measured=measured)
    assert "(measured)" not in swimlanes(schedule)


def test_forty_steps_look_different() -> None:
    looks = styles(f"step{i}" for i in range(40))
    assert len({(each.fill, each.rim) for each in looks.values()}) == 40
