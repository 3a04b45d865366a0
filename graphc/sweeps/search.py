"""Which candidates are tried, in which order: all of a grid, or those that a sampler asks for.

A sampler works on a study of its own in memory. What it asks for follows from the seed and the
rows so far alone: it is asked for a few candidates at a time, and told of them all before it is
asked again. So a sweep that was killed asks for the same candidates when it is started again, and
processes that share a sweep ask for the same ones, and part them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from graphc.sweeps.ledger import distributions, values_of
from graphc.sweeps.rows import Candidate, Row
from graphc.sweeps.space import Space
from graphc.sweeps.storage import optuna
from graphc.text.diagnostics import UsageError
from graphc.text.suggest import did_you_mean

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

TOGETHER = 4  # suggestions between two looks at the results
TRIALS = 100
# A sampler may ask again for what it has had: after so many in vain the space counts as exhausted.
PATIENCE = 20
GRID = "grid"
SAMPLERS = {
    "random": "RandomSampler",
    "tpe": "TPESampler",
    "nsgaii": "NSGAIISampler",
    "qmc": "QMCSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
}
NEEDS = {"qmc": ("scipy",), "gp": ("scipy", "torch"), "cmaes": ("cmaes",)}


def chunks(
    space: Space, sampler: str, trials: int | None, seed: int, rows: Mapping[str, Row]
) -> Iterator[list[Candidate]]:
    """Lists of candidates; the next list is asked for when all of the last have their ``rows``."""
    if trials is not None and trials < 1:
        raise UsageError(f"a sweep tries at least one candidate, not {trials}")
    if sampler == GRID:
        yield space.grid(trials, seed)
        return
    study = optuna().create_study(sampler=sampler_of(sampler, seed))
    yield from guided(space, study, trials or TRIALS, rows)


def sampler_of(name: str, seed: int) -> BaseSampler:
    known = (GRID, *SAMPLERS)
    if name not in known:
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        raise UsageError(f"there is no sampler '{name}': {hint}")
    for module in NEEDS.get(name, ()):
        if find_spec(module) is None:
            raise UsageError(
                f"the sampler '{name}' needs a package that is not installed: pip install {module}"
            )
    made = getattr(optuna().samplers, SAMPLERS[name])
    with quietly():
        found: BaseSampler = made(seed=seed)
    return found


@contextmanager
def quietly() -> Iterator[None]:
    """Without what Optuna says of samplers that it may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def guided(
    space: Space, study: Any, trials: int, rows: Mapping[str, Row]
) -> Iterator[list[Candidate]]:
    known = distributions(space.axes)
    drawn: dict[str, Candidate] = {}
    asked, in_vain = 0, 0
    while len(drawn) < trials and in_vain < PATIENCE * TOGETHER and len(drawn) < space.points:
        batch = []
        for _ in range(TOGETHER):
            with quietly():
                trial = study.ask(known)
            batch.append((trial, Candidate(asked, values_of(space.axes, trial.params))))
            asked += 1
        new = {
            each.key: each
            for _, each in reversed(batch)
            if each.key not in drawn and space.allows(each.values)
        }
        new = dict(sorted(new.items(), key=lambda item: item[1].index)[: trials - len(drawn)])
        in_vain = 0 if new else in_vain + TOGETHER
        drawn |= new
        if new:
            yield list(new.values())
        for trial, each in batch:
            tell(study, trial, rows.get(each.key))
    if not drawn:
        raise UsageError("no candidate is left: the sampler found none that fits the conditions")


def tell(study: Any, trial: Any, row: Row | None) -> None:
    """A candidate that failed or is not allowed counts as worse than all others."""
    if row is not None and row.is_ok:
        study.tell(trial, row.outcome.relative)
    else:
        study.tell(trial, state=optuna().trial.TrialState.PRUNED)
