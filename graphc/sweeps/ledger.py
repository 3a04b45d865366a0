"""Who works on which candidate, and the rows so far, in a storage that several processes share.

A trial of the study is a claim while it runs, and then a row, complete or failed. Of two that claim
one candidate at the same time, both see both claims, and the lower number has it. The claims of a
process that is gone are let go of: at once if it was on this machine, after a while if on another.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from graphc.sweeps.axes import Axis
from graphc.sweeps.rows import Candidate, Outcome, Row, outcome_of, row_of
from graphc.sweeps.rows import told as outcome_json
from graphc.sweeps.storage import open_storage, optuna, told
from graphc.text.diagnostics import UsageError
from graphc.text.words import Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STUDY = "graphc"
CONTENTS = ("spec", "schedule", "kernels and routes")  # known by a digest
MANY = 8  # values, of which a message quotes the ends
SOON_S = 5.0  # within which whoever makes a study says what it is of


class Ledger:
    """Claims and rows of one sweep."""

    def __init__(
        self,
        where: str | Path | None,
        identity: Mapping[str, Any],
        axes: Sequence[Axis],
        *,
        abandoned_s: float,
    ) -> None:
        self.name = str(where)
        self.axes, self.abandoned_s = axes, abandoned_s
        self.storage = open_storage(where)
        self.owner = owner()
        self.rows: dict[str, Row] = {}
        self.claims: dict[str, list[FrozenTrial]] = {}  # of all processes, by candidate
        self.own: dict[str, int] = {}  # candidate -> our trial
        self.settled = 0  # trials at the beginning of which nothing new can be heard
        with told(self.name):
            self.study = self._study(identity)
            self.refresh()

    def _study(self, identity: Mapping[str, Any]) -> int:
        library = optuna()
        directions = [library.study.StudyDirection.MINIMIZE]
        try:
            study = self.storage.create_new_study(directions, STUDY)
            self.storage.set_study_user_attr(study, "sweep", dict(identity))
        except library.exceptions.DuplicatedStudyError:
            study = self.storage.get_study_id_from_name(STUDY)
        found = waited(lambda: self.storage.get_study_user_attrs(study).get("sweep"))
        if found is None:  # whoever made it was killed before it could say so
            self.storage.set_study_user_attr(study, "sweep", dict(identity))
        elif found != identity:
            raise other_sweep(self.name, found, identity)
        return study

    @property
    def baseline(self) -> Outcome | None:
        """The baseline as it was measured first."""
        with told(self.name):
            found = self.storage.get_study_user_attrs(self.study).get("baseline")
        return None if found is None else outcome_of(found)

    def keep_baseline(self, outcome: Outcome) -> None:
        with told(self.name):
            self.storage.set_study_user_attr(self.study, "baseline", outcome_json(outcome))

    def refresh(self) -> None:
        """See what others did."""
        with told(self.name):
            trials = self.storage.get_all_trials(self.study, deepcopy=False)
        self.claims = {}
        while self.settled < len(trials) and self._is_settled(trials[self.settled]):
            self.settled += 1
        for trial in trials[self.settled :]:
            key = trial.user_attrs.get("key")
            if key is None:
                continue
            if self._is_settled(trial):
                continue
            if self._is_abandoned(trial):
                self._fail(trial._trial_id)
            else:
                self.claims.setdefault(key, []).append(trial)

    def _is_settled(self, trial: FrozenTrial) -> bool:
        """Whether nothing can become of it any more; what became of it is among the rows then."""
        attributes = trial.user_attrs
        if "row" in attributes and attributes["key"] not in self.rows:
            self.rows[attributes["key"]] = row_of(attributes["row"])
        return trial.state.is_finished()

    def _fail(self, trial: int) -> None:
        """End a trial without a row; somebody else may have done so, and a full disk is no news."""
        with suppress(Exception):
            self.storage.set_trial_state_values(trial, optuna().trial.TrialState.FAIL)

    def _is_abandoned(self, trial: FrozenTrial) -> bool:
        claim: Mapping[str, Any] = trial.user_attrs["owner"]
        if claim["owner"] == self.owner:
            key: str = trial.user_attrs["key"]
            return key not in self.own
        if claim["host"] == socket.gethostname():
            return not is_running(claim["process"])
        return time.time() - float(claim["at"]) > self.abandoned_s

    def is_free(self, key: str) -> bool:
        """Whether nobody has it, as far as is known."""
        return key not in self.rows and key not in self.claims

    def claim(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those of the candidates that nobody has: they are ours now."""
        free = [each for each in candidates if self.is_free(each.key)]
        with told(self.name):
            for each in free:
                self.own[each.key] = self.storage.create_new_trial(self.study, self._trial(each))
        self.refresh()
        ours = [each for each in free if self._is_ours(each.key)]
        for each in free:
            if each not in ours:
                self.release(each)
        return ours

    def _is_ours(self, key: str) -> bool:
        if key in self.rows or not self.claims.get(key):
            return False
        first = min(self.claims[key], key=lambda each: each.number)
        return bool(first.user_attrs["owner"]["owner"] == self.owner)

    def _trial(self, candidate: Candidate) -> FrozenTrial:
        library = optuna()
        claim = {
            "owner": self.owner,
            "host": socket.gethostname(),
            "process": process_of(os.getpid()),
            "at": time.time(),
        }
        trial: FrozenTrial = library.trial.create_trial(
            state=library.trial.TrialState.RUNNING,
            params=params_of(self.axes, candidate.values),
            distributions=distributions(self.axes),
            user_attrs={"key": candidate.key, "owner": claim},
        )
        return trial

    def record(self, row: Row) -> None:
        """Keep a row; the candidate is nobody's to try again."""
        states = optuna().trial.TrialState
        trial = self.own.pop(row.candidate.key)
        with told(self.name):
            self.storage.set_trial_user_attr(trial, "row", row.to_json())
            if row.is_ok:
                assert row.outcome.relative is not None
                self.storage.set_trial_state_values(trial, states.COMPLETE, [row.outcome.relative])
            else:
                self.storage.set_trial_state_values(trial, states.FAIL)
        self.rows.setdefault(row.candidate.key, row)

    def release(self, candidate: Candidate) -> None:
        """Let others have a candidate."""
        trial = self.own.pop(candidate.key, None)
        if trial is not None:
            self._fail(trial)

    def close(self) -> None:
        """Let go of what was not finished."""
        for trial in self.own.values():
            self._fail(trial)
        self.own.clear()
        self.storage.remove_session()


def other_sweep(name: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> UsageError:
    """What tells the two sweeps apart."""
    unlike = [
        unlikeness(key, found.get(key), wanted.get(key))
        for key in {**found, **wanted}
        if found.get(key) != wanted.get(key)
    ]
    return UsageError(
        f"'{name}' holds another sweep: {'; '.join(unlike)}. Name another --out or --storage, or "
        "go on with that one by what it was started with"
    )


def unlikeness(key: str, there: Any, here: Any) -> str:
    """
    >>> unlikeness("axes", {"pieces": ["1", "2"]}, {"pieces": ["1"], "early": ["true"]})
    'axes: pieces is 1, 2 there and 1 here, early is absent there and true here'
    >>> unlikeness("spec", "1f3a", "90c2")
    'spec: its content was another'
    """
    if key in CONTENTS:
        return f"{key}: its content was another"
    if isinstance(there, dict) and isinstance(here, dict):
        names = [each for each in {**there, **here} if there.get(each) != here.get(each)]
        parts = (f"{each} is {both(there.get(each), here.get(each))}" for each in names)
        return f"{key}: {', '.join(parts)}"
    return f"{key}: {both(there, here)}"


def both(there: Any, here: Any) -> str:
    return f"{brief(there)} there and {brief(here)} here"


def brief(value: Any) -> str:
    """
    >>> brief([str(each) for each in range(64)]), brief(None)
    ('0, 1, ..., 63 (64 values)', 'absent')
    """
    if isinstance(value, list):
        few = [*value[:2], "...", value[-1]] if len(value) > MANY else value
        count = f" ({len(value)} values)" if len(value) > MANY else ""
        return ", ".join(map(str, few)) + count if value else "none"
    return "absent" if value is None else str(value)


def waited(ask: Callable[[], Any]) -> Any:
    """What another process is about to write."""
    until = time.monotonic() + SOON_S
    while (found := ask()) is None and time.monotonic() < until:
        time.sleep(0.05)
    return found


def owner() -> str:
    """A name that no other sweep has, in this process or elsewhere."""
    return uuid4().hex


def process_of(number: int) -> list[int]:
    """A process and when it started, for numbers are given out again."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return [number, 0]
    return [number, int(stat.rpartition(")")[2].split()[19])]


def is_running(process: list[int]) -> bool:
    number, _ = process
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return process_of(number) == process


def distributions(axes: Sequence[Axis]) -> dict[str, BaseDistribution]:
    """The axes as Optuna knows them: numbers at even steps are ordered, all else is a choice."""
    return {each.name: distribution(each) for each in axes}


def distribution(axis: Axis) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    values = axis.values
    if is_stepped(values):
        step = values[1] - values[0] if len(values) > 1 else 1  # type: ignore[operator]
        return IntDistribution(values[0], values[-1], step=step)  # type: ignore[arg-type]
    return CategoricalDistribution([as_choice(each) for each in values])


def is_stepped(values: Sequence[Value]) -> bool:
    if any(type(each) is not int for each in values):
        return False
    numbers = [each for each in values if isinstance(each, int)]
    steps = {after - before for before, after in pairwise(numbers)}
    return len(steps) < 2 and all(each > 0 for each in steps)


def as_choice(value: Value) -> int | float | bool | str | None:
    return repr(value) if isinstance(value, list) else value


def params_of(axes: Sequence[Axis], values: Mapping[str, Value]) -> dict[str, Any]:
    return {each.name: as_choice(values[each.name]) for each in axes}


def values_of(axes: Sequence[Axis], params: Mapping[str, Any]) -> dict[str, Value]:
    """The values that Optuna's params stand for."""
    found: dict[str, Value] = {}
    for each in axes:
        choices = {(type(as_choice(value)), as_choice(value)): value for value in each.values}
        found[each.name] = choices[type(params[each.name]), params[each.name]]
    return found
