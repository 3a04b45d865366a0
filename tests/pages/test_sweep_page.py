"""A sweep's page in a real browser: curves with the winner marked, and every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphc.draw.look import sweep_page

ROUTES = {"host": 900.0, "p2p": 600.0, "host_push": 950.0}


def rows() -> list[dict[str, Any]]:
    """Each route is best at eight pieces; early is 50 us better; one candidate failed."""
    found = []
    for route, base in ROUTES.items():
        for pieces in (1, 2, 4, 8, 16, 32):
            for early in (True, False):
                us = base + 20 * abs(8 - pieces) + (0 if early else 50)
                row = {
                    "index": len(found),
                    "values": {"route": route, "pieces": pieces, "early": early},
                    "status": "ok",
                    "reason": None,
                    "basis": "measured",
                    "us": us,
                    "relative": us / 1000,
                    "predicted_us": us * 1.05,
                }
                found.append(row)
    found[3] |= {
        "status": "failed",
        "reason": "a GPU fault </script>",
        "us": None,
        "relative": None,
    }
    return found


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = rows()
    best = min((each for each in made if each["us"]), key=lambda each: each["us"])
    path = tmp_path_factory.mktemp("pages") / "sweep.html"
    path.write_text(
        sweep_page(
            made,
            name="moe_peer",
            axes=["route", "pieces", "early"],
            winner=best["index"],
            basis="measured",
            baseline_us=1000.0,
        )
    )
    return path


@pytest.fixture
def page(opened: Any, file: Path) -> Any:
    return opened(file)


def test_it_says_what_was_swept(page: Any) -> None:
    assert page.text("h1") == "moe_peer: a sweep"
    assert page.text(".sub") == "over route (3), pieces (6), early (2)"
    facts = page.text(".facts")
    assert "36\ncandidates" in facts
    assert "35\nok" in facts
    assert "600.0 us\nbest" in facts
    assert "60%\nof the baseline's time" in facts


def test_a_curve_for_each_route_measured_and_predicted(page: Any) -> None:
    assert [each.text for each in page.all(".legend .chip")] == [*ROUTES]
    assert len(page.all(".chart .curve:not(.is-predicted)")) == 3
    assert len(page.all(".chart .curve.is-predicted")) == 3
    assert "measured, predicted" in page.text(".legend")
    assert len(page.all(".chart .baseline")) == 1
    dots = page.all(".chart .dot:not(.is-other)")
    assert len(dots) == 18  # the better of both, at each place of each curve


def test_the_winner_is_marked(page: Any) -> None:
    assert len(page.all(".chart .star")) == 1
    assert page.text(".chart .winner") == "600 us: route p2p, pieces 8, early true"
    assert len(page.all("tr.is-winner")) == 1
    assert page.column("Candidates", 0)[0] == "p2p"


def test_a_dot_tells_its_candidate_and_leads_to_its_row(page: Any) -> None:
    dot = page.find(".chart .dot[data-row='18']")
    place = dot.rect
    page.point(
        {"left": place["x"], "top": place["y"], "width": place["width"], "height": place["height"]}
    )
    tip = page.text("#tip")
    assert "pieces\n8" in tip
    assert "predicted" in tip
    dot.click()
    page.settle()
    assert page.find("tr.is-picked").get_attribute("data-row") == "18"


def test_rows_sort_by_column_with_what_failed_at_the_end(page: Any) -> None:
    def times() -> list[str]:
        return page.column("Candidates", 3)

    assert times()[0] == "600 us"
    assert times()[-1] == "–"
    page.click("[data-table='Candidates'] th:nth-child(4)")
    assert times()[0] == "1.48 ms"
    assert times()[-1] == "–"
    page.click("[data-table='Candidates'] th:nth-child(2)")
    pieces = [int(each) for each in page.column("Candidates", 1)]
    assert pieces == sorted(pieces, reverse=True)


def test_rows_can_be_filtered_and_failures_say_why(page: Any) -> None:
    page.find("[data-table='Candidates'] .filter").send_keys("failed")
    page.settle()
    assert page.column("Candidates", 8) == ["a GPU fault </script>"]
    assert len(page.all("[data-table='Candidates'] tr.is-bad")) == 1


def test_curves_can_be_hidden_and_other_axes_chosen(page: Any) -> None:
    page.click(".legend .chip")
    assert len(page.all(".chart .curve:not(.is-predicted)")) == 2
    selects = page.all(".tools select")
    page.run(
        "arguments[0].value = 'early'; arguments[0].dispatchEvent(new Event('change'))", selects[1]
    )
    page.settle()
    assert [each.text for each in page.all(".legend .chip")] == ["true", "false"]


def test_nothing_that_is_ok_is_said(opened: Any, tmp_path: Path) -> None:
    made = [each | {"status": "failed", "us": None, "relative": None} for each in rows()[:2]]
    path = tmp_path / "none.html"
    path.write_text(
        sweep_page(made, name="none", axes=["route", "pieces"], winner=None, basis="measured")
    )
    page = opened(path)
    assert "No candidate that is ok has a time." in page.text(".chart")
