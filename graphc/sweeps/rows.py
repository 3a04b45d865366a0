"""A row of a sweep: one candidate, what became of it, and how long it takes.

``relative`` is its time as a share of the baseline's: of the baseline's in the same rounds where it
was measured, so that a machine that warms up or slows down during a sweep shifts no row against
another. The winner is the row that has the least.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from graphc.text.diagnostics import UsageError, error
from graphc.text.words import Value
from graphc.text.write import cannot_write, write_whole

KEPT = "what was measured is kept: with room on the disk, the same command goes on"
HEAD = ("index", "values", "status", "reason", "basis", "us", "relative", "params")


class Status(StrEnum):
    OK = "ok"
    REFUSED = "refused"  # it does not compile, or does not fit the baseline
    DIFFERENT = "different"  # other bits than the baseline
    FAILED = "failed"  # a fault of the GPU, a hang, or a worker that ended


class Basis(StrEnum):
    PREDICTED = "predicted"  # by a machine profile
    MEASURED = "measured"  # by the events of a GPU
    WALL = "wall"  # the host's clock, on the reference: it says nothing about a GPU


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate."""

    status: Status
    basis: Basis
    reason: str | None = None  # why it is not ok
    us: float | None = None
    relative: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)  # all of the spec's
    facts: Mapping[str, Any] = field(default_factory=dict)  # what else is known, by name


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of the axes."""

    index: int
    values: Mapping[str, Value]  # by the names of the axes

    @property
    def key(self) -> str:
        """What tells it from all others of its sweep."""
        return json.dumps(list(self.values.values()))

    @property
    def label(self) -> str:
        return " ".join(f"{name}={word_of(value)}" for name, value in self.values.items())


@dataclass(frozen=True, slots=True)
class Row:
    candidate: Candidate
    outcome: Outcome

    @property
    def is_ok(self) -> bool:
        return self.outcome.status is Status.OK

    def to_json(self) -> dict[str, Any]:
        """Flat, so that a table has a column for each fact; ``values`` are those of the axes."""
        return {"index": self.candidate.index, "values": dict(self.candidate.values)} | told(
            self.outcome
        )


def told(outcome: Outcome) -> dict[str, Any]:
    return {
        "status": outcome.status.value,
        "reason": outcome.reason,
        "basis": outcome.basis.value,
        "us": outcome.us,
        "relative": outcome.relative,
        "params": dict(outcome.params),
        **outcome.facts,
    }


def row_of(data: Mapping[str, Any]) -> Row:
    """
    >>> row = Row(Candidate(3, {"a": 1}), Outcome(Status.OK, Basis.PREDICTED, us=2.0))
    >>> row_of(row.to_json()) == row
    True
    """
    return Row(Candidate(data["index"], data["values"]), outcome_of(data))


def outcome_of(data: Mapping[str, Any]) -> Outcome:
    return Outcome(
        Status(data["status"]),
        Basis(data["basis"]),
        data["reason"],
        data["us"],
        data["relative"],
        data["params"],
        {name: value for name, value in data.items() if name not in HEAD},
    )


def best_of(rows: Iterable[Row]) -> Row | None:
    """The fastest of those that are proven, ran, and left the baseline's bits."""
    return next(iter(ranked(rows)), None)


def ranked(rows: Iterable[Row]) -> list[Row]:
    """Those that are ok, the fastest first; the first of the sweep where two are alike."""
    return sorted((each for each in rows if each.is_ok), key=rank)


def rank(row: Row) -> tuple[float, int]:
    return row.outcome.relative or 0.0, row.candidate.index


def word_of(value: Value) -> str:
    """
    >>> word_of(["1/4", "3/4"]), word_of(True), word_of(8)
    ('[1/4, 3/4]', 'true', '8')
    """
    if isinstance(value, list):
        return f"[{', '.join(map(word_of, value))}]"
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def line_of(row: Row) -> str:
    return json.dumps(row.to_json()) + "\n"


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    write_whole(path, "".join(map(line_of, rows)).encode())


def append_lines(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to what is there, each before the next is measured."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(map(line_of, rows)))
    except OSError as problem:
        why = f"cannot write '{path}': {problem.strerror}"
        raise error("cannot-write", why, hint=KEPT) from None


def check_parquet() -> None:
    if find_spec("pyarrow") is None:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed: pip install pyarrow; "
            "rows.jsonl holds the same rows"
        )


def write_parquet(path: Path, rows: Iterable[Row]) -> None:
    """One column a value of the axes, a param (``param.tokens``) or a fact; lists as JSON."""
    from pyarrow import Table, parquet

    flat = [flattened(each.to_json()) for each in rows]
    names = dict.fromkeys(name for each in flat for name in each)
    columns = {name: [each.get(name) for each in flat] for name in names}
    try:
        parquet.write_table(Table.from_pydict(uniform(columns)), path)
    except OSError as problem:
        raise cannot_write(path, str(problem.strerror or problem)) from None


def flattened(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name not in ("values", "params")}
    found |= {f"param.{name}": value for name, value in row["params"].items()}
    found |= {f"axis.{name}": value for name, value in row["values"].items()}
    return {name: plain(value) for name, value in found.items()}


def plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def uniform(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Columns of one type each: numbers together, all else of a mixed column as text."""
    found = {}
    for name, values in columns.items():
        kinds = {type(each) for each in values if each is not None}
        is_mixed = len(kinds) > 1 and not kinds <= {int, float}
        if is_mixed:
            values = [each if each is None else word_of(each) for each in values]
        elif kinds == {int, float}:
            values = [each if each is None else float(each) for each in values]
        found[name] = values
    return found
