"""A page of a prediction above a trace, clicked through in a real browser."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import graphc
from graphc.backends.recording import Recording, Replay, Span, Stray, Way
from graphc.draw.look import plan_page, trace_page
from graphc.draw.page import timeline_page
from graphc.draw.scene import View
from graphc.ir import (
    Axis,
    Memory,
    Op,
    Opaque,
    Piece,
    Program,
    Run,
    Schedule,
    Stream,
)
from graphc.timeline import Slice, Source, Timeline
from graphc.tracing.traced import Trace, trace_of

COMBINE = "layer.0/combine/piece.1"
UP = "layer.0/results/up/piece.1"


@cache
def traced() -> tuple[Trace, Any]:
    """A trace in which every op ran a tenth longer than predicted, and a record was lost."""
    plan = graphc.compile(
        "moe_peer", preset="full", route="host", pieces=4, cubins=False, arch="sm_90a"
    )
    prediction = graphc.simulate(plan, machine="h200x2")
    spans = {
        each.op: Span(each.start_us * 1.1, each.stop_us * 1.1)
        for each in prediction.timeline.slices
    }
    stray = Stray("kernel of_another </script>", "its node belongs to no op", 1, 100.0, 130.0)
    recording = Recording(
        Way.EVENTS, (Replay(spans, (stray,)),), {"primary": "the clock of the replay"}
    )
    return trace_of(plan, plan.variants[0], recording, prediction.timeline), prediction


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace, prediction = traced()
    path = tmp_path_factory.mktemp("pages") / "trace.html"
    path.write_text(trace_page(trace, title="moe_peer <traced>", prediction=prediction))
    return path


@pytest.fixture
def page(opened: Any, file: Path) -> Any:
    return opened(file)


def test_it_says_what_it_shows(page: Any) -> None:
    assert page.text("h1") == "moe_peer <traced>"
    assert [each.text for each in page.all(".title h2")] == ["predicted", "measured"]
    assert "predicted" in page.text(".facts")
    assert "clock of primary: the clock of the replay" in page.text(".notes")
    assert page.run("return graphcPage.drawn()")[0] > 40


def test_a_hover_tells_an_op_its_bytes_and_why_it_waited(page: Any) -> None:
    page.point(page.rect(COMBINE))
    tip = page.text("#tip")
    assert tip.startswith(COMBINE)
    assert "kernel moe_combine" in tip
    assert f"for {UP}" in tip  # why it waited
    assert "out=layer.0/out[" in tip  # a region
    assert "1 of 4" in tip  # the piece
    page.point({"left": 5, "top": 5, "width": 0, "height": 0})
    assert not page.find("#tip").is_displayed()


def test_a_hover_over_an_idle_stream_tells_what_it_waits_for(page: Any) -> None:
    _, prediction = traced()
    slices = {each.op: each for each in prediction.timeline.slices}
    after = page.rect(COMBINE)
    waited = slices[COMBINE].waited_us / slices[COMBINE].duration_us * after["width"]
    if waited > 6:
        page.point({**after, "left": after["left"] - waited / 2, "width": 0})
        assert page.text("#tip").startswith(f"idle, before {COMBINE}")


def test_a_click_pins_an_op_and_its_links_lead_on(page: Any) -> None:
    page.point(page.rect(COMBINE), is_click=True)
    assert page.run("return graphcPage.pinned()") == COMBINE
    detail = page.text(".detail")
    assert "phase\ncombine" in detail
    assert "predicted" in detail
    assert "measured" in detail
    assert page.text(".detail .binding") == UP
    page.click(".detail .binding .link")
    assert page.run("return graphcPage.pinned()") == UP
    assert "engine\nsm" in page.text(".detail")
    page.press("\ue00c")  # escape
    assert page.run("return graphcPage.pinned()") is None
    assert not page.find(".detail").is_displayed()


def test_wheel_drag_and_keys_move_what_is_in_sight(page: Any) -> None:
    first, last = page.sight()
    page.wheel(page.rect(COMBINE), -240)
    closer = page.sight()
    assert closer[1] - closer[0] < 0.75 * (last - first)
    rect = page.rect(COMBINE)  # what the pointer is on stays under it
    page.drag(rect, 200)
    moved = page.sight()
    assert moved[0] < closer[0]
    assert moved[1] - moved[0] == pytest.approx(closer[1] - closer[0])
    after = page.rect(COMBINE)
    assert after["left"] - rect["left"] == pytest.approx(200, abs=3)
    page.press("d")
    assert page.sight()[0] > moved[0]
    page.press("+")
    assert page.sight()[1] - page.sight()[0] < moved[1] - moved[0]
    page.press("0")
    assert page.sight() == (pytest.approx(first), pytest.approx(last))


def test_the_overview_moves_what_is_in_sight(page: Any) -> None:
    for _ in range(4):
        page.press("+")
    page.run("window.scrollTo(0, 0)")
    overview = page.find("canvas.map").rect
    page.point(
        {"left": overview["x"] + 300, "top": overview["y"], "width": 0, "height": 20},
        is_click=True,
    )
    early = page.sight()
    page.point(
        {"left": overview["x"] + 1000, "top": overview["y"], "width": 0, "height": 20},
        is_click=True,
    )
    assert page.sight()[0] > early[1]


def test_search_finds_ops_by_name(page: Any) -> None:
    page.press("/")
    box = page.find("#search input")
    box.send_keys("combine piece")
    page.settle()
    assert page.text("#search output") == "4 ops"
    box.send_keys("\ue007")
    page.settle()
    assert page.text("#search output") == "1 of 4"
    assert page.run("return graphcPage.pinned()") == "layer.0/combine/piece.0"
    box.send_keys("\ue007")
    page.settle()
    assert page.run("return graphcPage.pinned()") == COMBINE
    first, last = page.sight()
    rect = page.rect(COMBINE)
    assert 0 < rect["left"] < 1500
    assert last - first < 6000
    box.send_keys("nowhere")
    page.settle()
    assert page.text("#search output") == "none"
    box.send_keys("\ue00c")
    page.settle()
    assert page.text("#search output") == ""


def test_neighbours_of_the_pinned_op_are_a_key_away(page: Any) -> None:
    page.point(page.rect(COMBINE), is_click=True)
    page.press("n")
    assert page.run("return graphcPage.pinned()") == "layer.0/add/piece.1"
    page.press("p")
    assert page.run("return graphcPage.pinned()") == COMBINE


def test_the_legend_tells_steps_or_phases_and_isolates(page: Any) -> None:
    names = [each.text for each in page.all(".legend .chip")]
    assert {"combine", "results/up", "p_up"} <= {*names}
    page.click(".legend .chip:nth-child(2)")
    assert page.find(".legend .chip:nth-child(2)").get_attribute("aria-pressed") == "true"
    page.run(
        "const it = document.querySelector(\"select[aria-label='Colours']\");"
        "it.value = 'phase'; it.dispatchEvent(new Event('change'));"
    )
    page.settle()
    names = [each.text for each in page.all(".legend .chip")]
    assert names[:6] == ["router", "activations", "peer", "results", "local", "combine"]
    assert page.find(".legend .chip").get_attribute("aria-pressed") == "false"


def test_the_critical_path_stands_out(page: Any) -> None:
    (button,) = [each for each in page.all(".tools .button") if each.text == "Critical path"]
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    page.settle()
    assert page.run("return graphcPage.state.isCritical") is True


def test_tables_sort_by_column_and_lead_to_ops(page: Any) -> None:
    trace, _ = traced()
    times = {each.op: each.us for each in trace.ops}
    measured = "[data-table='Ops'] th:nth-child(5)"
    assert page.text(measured) == "measured"
    page.click(measured)
    assert page.find(measured).get_attribute("aria-sort") == "descending"
    found = [times[op] for op in page.column("Ops", 0)]
    assert found == sorted(times.values(), reverse=True)
    page.click(measured)
    assert page.find(measured).get_attribute("aria-sort") == "ascending"
    assert [times[op] for op in page.column("Ops", 0)] == sorted(times.values())
    errors = {each for each in page.column("Ops", 7) if each != "–"}
    assert errors == {"-9.1 %"}
    page.click(f"[data-table='Ops'] tr[data-op='{COMBINE}'] td")
    assert page.run("return graphcPage.pinned()") == COMBINE


def test_rows_can_be_filtered(page: Any) -> None:
    page.find("[data-table='Ops'] .filter").send_keys("results up")
    page.settle()
    assert len(page.column("Ops", 0)) == 4


def test_phases_and_lost_records_have_tables(page: Any) -> None:
    phases = page.column("Phases", 0)
    assert phases[:6] == ["router", "activations", "peer", "results", "local", "combine"]
    (what,) = page.column("Records that belong to no op", 0)
    assert what == "kernel of_another </script>"
    engines = page.column("Engines", 0)
    assert "primary sm" in engines


def test_memory_shows_which_buffers_live(page: Any) -> None:
    page.run("document.querySelector(\"canvas[data-view='memory']\").scrollIntoView()")
    page.point(page.run("return graphcPage.bufferRect('layer.0/results/wire')"))
    tip = page.text("#tip")
    assert tip.startswith("layer.0/results/wire")
    assert "83.9 MB" in tip
    assert "first\nlayer.0/results/down/piece.0" in tip
    assert "last\nlayer.0/results/up/piece.3" in tip


def test_light_and_dark(page: Any) -> None:
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    theme = page.run("return document.documentElement.dataset.theme")
    page.click("#theme")
    assert page.run("return document.documentElement.dataset.theme") != theme
    assert page.run("return getComputedStyle(document.body).backgroundColor") != before


def test_a_plan_has_a_page_of_its_own(opened: Any, tmp_path: Path) -> None:
    trace, _ = traced()
    path = tmp_path / "plan.html"
    schedule = trace.variant.schedule
    path.write_text(plan_page(schedule, title="a plan", phases={}))
    page = opened(path)
    assert page.text(".title h2") == "schedule"
    assert "no prediction" in page.text(".title")
    page.point(page.rect(COMBINE))
    assert page.text("#tip").startswith(COMBINE)


def many(count: int) -> tuple[Schedule, Timeline]:
    """So many ops on eight streams, 1 us each, each waiting for one of the next stream."""
    streams = tuple(Stream(f"gpu.{at}", "gpu") for at in range(8))
    names = [f"step.{at % 40}/piece.{at}" for at in range(count)]
    ops = tuple(
        Op(name, f"step.{at % 40}", "gpu", Opaque(), (), Axis(), Piece(at, count))
        for at, name in enumerate(names)
    )
    issue = tuple(Run(f"gpu.{at % 8}", name) for at, name in enumerate(names))
    program = Program("many", ("gpu",), {}, ops)
    schedule = Schedule(program, streams, "gpu.0", issue, (), Memory((), {}))
    slices = tuple(
        Slice(
            name, f"step.{at % 40}", at, f"gpu.{at % 8}", "gpu", "sm", at / 8, at / 8 + 0.9,
            max(0.0, at / 8 - 0.1), (names[at - 1],) if at else (),
        )
        for at, name in enumerate(names)
    )  # fmt: skip
    return schedule, Timeline(Source.SIMULATED, slices, count / 8 + 1)


def test_of_twenty_thousand_ops_only_those_in_sight_are_drawn(opened: Any, tmp_path: Path) -> None:
    schedule, timeline = many(20_000)
    path = tmp_path / "many.html"
    view = View("predicted", "", timeline)
    path.write_text(timeline_page(schedule, [view], title="many", subtitle="", phases={}))
    assert path.stat().st_size < 6_000_000
    page = opened(path)
    (drawn,) = page.run("return graphcPage.drawn()")
    assert drawn < 12_000  # less than a pixel each: what falls on one pixel is drawn once
    page.find("#search input").send_keys("piece.12345\ue007")
    page.settle()
    assert page.run("return graphcPage.pinned()") == "step.25/piece.12345"
    (drawn,) = page.run("return graphcPage.drawn()")
    assert drawn < 400
    page.point(page.rect("step.25/piece.12345"))
    assert page.text("#tip").startswith("step.25/piece.12345")
    assert "for step.24/piece.12344" in page.text("#tip")


def test_overlapping_ops_of_a_stream_are_stacked(opened: Any, tmp_path: Path) -> None:
    """As where explicit edges order them, and not their stream."""
    schedule, timeline = many(3)
    slices = tuple(
        replace(each, stream="gpu.0", start_us=0.1 * at, stop_us=0.1 * at + 5.0, ready_us=0.0)
        for at, each in enumerate(timeline.slices)
    )
    path = tmp_path / "stacked.html"
    view = View("measured", "", replace(timeline, slices=slices))
    path.write_text(timeline_page(schedule, [view], title="stacked", subtitle="", phases={}))
    page = opened(path)
    rects = [page.rect(each.op) for each in slices]
    assert len({rect["top"] for rect in rects if rect}) == 3
