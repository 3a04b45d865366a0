"""The ledger: claims that part a sweep, rows that stay, and storages of another sweep."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from graphc.sweeps import ledger as ledgers
from graphc.sweeps.axes import axes_of
from graphc.sweeps.ledger import Ledger, distributions, params_of, values_of
from graphc.sweeps.rows import Basis, Candidate, Outcome, Row, Status
from graphc.sweeps.storage import optuna
from graphc.text.diagnostics import SpecError, UsageError

AXES = axes_of({"route": ["host", "p2p"], "pieces": "1:4"})
CANDIDATES = [
    Candidate(index, {"route": route, "pieces": pieces})
    for index, (route, pieces) in enumerate((r, p) for r in ("host", "p2p") for p in range(1, 5))
]
STORAGES = ("sweep.journal", "sweep.db")


def opened(where: Any, identity: Any = None, **options: Any) -> Ledger:
    options = {"abandoned_s": 600.0, **options}
    return Ledger(where, identity or {"spec": "1f3a", "seed": 0}, AXES, **options)


def row(candidate: Candidate, status: Status = Status.OK) -> Row:
    us = 1.5 if status is Status.OK else None
    reason = None if status is Status.OK else "told so"
    return Row(candidate, Outcome(status, Basis.PREDICTED, reason, us, us, {"a": 1}, {"ops": 3}))


@pytest.mark.parametrize("name", STORAGES)
def test_rows_are_there_when_it_is_opened_again(tmp_path: Path, name: str) -> None:
    first = opened(tmp_path / name)
    rows = [row(CANDIDATES[0]), row(CANDIDATES[1], Status.FAILED)]
    first.claim(CANDIDATES[:3])
    for each in rows:
        first.record(each)
    first.keep_baseline(rows[0].outcome)
    first.close()
    again = opened(tmp_path / name)
    assert list(again.rows.values()) == rows
    assert again.baseline == rows[0].outcome
    assert again.claim(CANDIDATES) == CANDIDATES[2:]


@pytest.mark.parametrize("name", STORAGES)
def test_two_that_share_a_storage_part_the_candidates(tmp_path: Path, name: str) -> None:
    one, two = opened(tmp_path / name), opened(tmp_path / name)
    first = one.claim(CANDIDATES[:4])
    second = two.claim(CANDIDATES)
    assert first == CANDIDATES[:4]
    assert second == CANDIDATES[4:]
    one.record(row(CANDIDATES[0]))
    two.refresh()
    assert list(two.rows) == [CANDIDATES[0].key]


def test_of_two_claims_at_once_the_first_has_it(tmp_path: Path) -> None:
    one, two = opened(tmp_path / "j"), opened(tmp_path / "j")
    two.is_free = lambda key: True  # type: ignore[method-assign]  # it has not looked yet
    assert one.claim(CANDIDATES[:2]) == CANDIDATES[:2]
    assert two.claim(CANDIDATES[1:3]) == [CANDIDATES[2]]
    assert list(two.own) == [CANDIDATES[2].key]


def test_what_was_let_go_of_is_free_again(tmp_path: Path) -> None:
    one, two = opened(tmp_path / "j"), opened(tmp_path / "j")
    one.claim(CANDIDATES[:2])
    one.close()
    assert two.claim(CANDIDATES[:2]) == CANDIDATES[:2]


def test_claims_of_a_process_that_is_gone_are_free(tmp_path: Path) -> None:
    program = (
        "import os, sys; sys.path[:] = sys.argv[2:]; import test_sweep_ledger as t; "
        "t.opened(sys.argv[1]).claim(t.CANDIDATES[:3]); os._exit(0)"
    )
    where = str(tmp_path / "j")
    subprocess.run([sys.executable, "-c", program, where, *sys.path], check=True)
    assert opened(where).claim(CANDIDATES) == CANDIDATES


def test_claims_of_another_machine_are_free_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = opened(tmp_path / "j")
    monkeypatch.setattr(ledgers.socket, "gethostname", lambda: "elsewhere")
    away.claim(CANDIDATES[:1])
    monkeypatch.undo()
    assert opened(tmp_path / "j").claim(CANDIDATES[:1]) == []
    time.sleep(0.02)
    assert opened(tmp_path / "j", abandoned_s=0.01).claim(CANDIDATES[:1]) == CANDIDATES[:1]


@pytest.mark.parametrize("name", STORAGES)
def test_a_storage_of_another_sweep_is_refused_by_what_differs(tmp_path: Path, name: str) -> None:
    opened(tmp_path / name, {"spec": "1f3a", "seed": 0, "axes": {"pieces": ["1", "2"]}}).close()
    with pytest.raises(UsageError) as caught:
        opened(tmp_path / name, {"spec": "90c2", "seed": 1, "axes": {"pieces": ["1"]}})
    assert str(caught.value).startswith(
        f"'{tmp_path / name}' holds another sweep: spec: its content was another; seed: 0 there "
        "and 1 here; axes: pieces is 1, 2 there and 1 here."
    )


@pytest.mark.parametrize("name", STORAGES)
def test_a_file_that_is_no_storage_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("what somebody wrote down\n" * 100)
    with pytest.raises((UsageError, SpecError), match=name):
        opened(tmp_path / name)
    assert (tmp_path / name).read_text().startswith("what somebody")


@pytest.mark.parametrize(
    "content", ['{"graphc_plan": 1, "ops": []}', '{\n "a": 1\n}', '{"a": 1}\n']
)
def test_a_file_of_json_that_is_no_journal_stays_as_it_is(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(UsageError, match="no journal of a sweep"):
        opened(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_text() == content


@pytest.mark.parametrize("line", ["what is this", "[1, 2]", '{"op": 4}', ""])
def test_a_journal_that_is_damaged_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    first = opened(tmp_path / "j")
    first.claim(CANDIDATES[:1])
    first.record(row(CANDIDATES[0]))
    lines = (tmp_path / "j").read_text().splitlines()
    (tmp_path / "j").write_text("\n".join([*lines[:2], line, *lines[3:], ""]))
    with pytest.raises(UsageError, match=r"j' is damaged"):
        opened(tmp_path / "j")


def test_processes_may_begin_on_a_new_database_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_sweep_ledger as here\n"
        "from graphc.sweeps.storage import optuna; optuna(); input()\n"
        "print(here.opened(sys.argv[2]).study)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "new.db")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    them = [subprocess.Popen(command, text=True, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    for each in them:
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate() for each in them]
    assert [out for out, _ in said] == ["1\n"] * len(them), said


def test_tables_that_others_are_making_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = optuna().storages.RDBStorage
    made = kind.__init__
    tries = [RuntimeError("table studies already exists"), AssertionError(), None]

    def beside_others(*arguments: Any, **options: Any) -> None:
        if (problem := tries.pop(0)) is not None:
            raise problem
        made(*arguments, **options)

    monkeypatch.setattr(kind, "__init__", beside_others)
    assert opened(tmp_path / "new.db").rows == {}
    assert not tries


def test_a_journal_with_half_a_last_line_goes_on(tmp_path: Path) -> None:
    first = opened(tmp_path / "j")
    first.claim(CANDIDATES[:1])
    first.record(row(CANDIDATES[0]))
    first.close()
    with (tmp_path / "j").open("a") as file:
        file.write('{"op_code": 4, "worker_')
    again = opened(tmp_path / "j")
    assert again.claim(CANDIDATES[:2]) == CANDIDATES[1:2]
    again.record(row(CANDIDATES[1]))
    assert len(opened(tmp_path / "j").rows) == 2


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "is a folder"),
        ("no/such/sweep.db", "there is no folder"),
    ],
)
def test_places_that_cannot_hold_a_storage_are_named(
    tmp_path: Path, where: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        opened(tmp_path / where)


@pytest.mark.parametrize(
    "url", ["nosuchdb://host/name", "postgresql+nothing://host/name", "sqlite://a/b:c@d/e"]
)
def test_a_url_that_leads_nowhere_is_named(url: str) -> None:
    with pytest.raises(UsageError, match="is no URL of a database that is known") as caught:
        opened(url)
    assert url in str(caught.value)


def test_values_come_back_from_what_optuna_keeps() -> None:
    axes = axes_of(
        {
            "pieces": "1:64:4",
            "few": [1, 2, 4],
            "early": [True, False, 1],
            "cuts.compute": [["3/8", "5/8"], 2],
            "one": [3],
        }
    )
    for at in range(2):
        values = {each.name: each.values[min(at, len(each.values) - 1)] for each in axes}
        assert values_of(axes, params_of(axes, values)) == values
        for name, known in distributions(axes).items():
            assert known._contains(known.to_internal_repr(params_of(axes, values)[name]))


def test_numbers_at_even_steps_are_ordered_for_a_sampler() -> None:
    kinds = {
        name: type(each).__name__
        for name, each in distributions(axes_of({"a": "1:9:2", "b": [1, 2, 4], "c": [7]})).items()
    }
    assert kinds == {"a": "IntDistribution", "b": "CategoricalDistribution", "c": "IntDistribution"}
