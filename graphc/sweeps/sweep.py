"""Spec, axes -> rows: every candidate compiled, proven, timed or predicted; the best of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from graphc.api import Folders, PathLike, check, folders, plain_value
from graphc.plan import checked_path
from graphc.resources import spec_path
from graphc.spec.model import LayerSpec, load_spec
from graphc.sweeps import measured, simulated
from graphc.sweeps.axes import Axis, axes_of
from graphc.sweeps.best import write_best
from graphc.sweeps.identity import identity_of
from graphc.sweeps.job import Job
from graphc.sweeps.ledger import Ledger
from graphc.sweeps.rows import (
    Candidate,
    Outcome,
    Row,
    append_lines,
    best_of,
    check_parquet,
    told,
    write_lines,
    write_parquet,
)
from graphc.sweeps.search import GRID, TRIALS, chunks
from graphc.sweeps.space import Space, check_names
from graphc.sweeps.storage import LOCAL, optuna
from graphc.sweeps.workers import Workers, cores, enough, workers_of
from graphc.text.diagnostics import Note, Span, UsageError, noted
from graphc.text.expr import check_expression
from graphc.text.write import cannot_write

ROWS, BEST, PARQUET = "rows.jsonl", "best.yaml", "rows.parquet"
MOST_WORKERS = 256  # of one process
LIMIT_S = 120.0  # for one candidate
LOOK_S = 0.5  # between two looks at what others do
AHEAD = 4  # candidates that are claimed for each worker


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a sweep is."""

    done: int
    total: int  # known so far: all of a grid, the trials of a search
    best: Row | None
    last: Row | None
    not_ok: int
    waits_for: int = 0  # candidates that other processes have


Progress: TypeAlias = Callable[[Standing], None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found: all rows in the order of the candidates, and the best of them."""

    name: str
    axes: tuple[Axis, ...]
    baseline: Outcome
    rows: tuple[Row, ...]
    best: Row | None
    out: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "axes": {each.name: list(each.values) for each in self.axes},
            "baseline": told(self.baseline),
            "best": None if self.best is None else self.best.to_json(),
            "out": None if self.out is None else str(self.out),
            "candidates": [each.to_json() for each in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sweep as it was asked for, whoever asked."""

    space: Space
    sampler: str = "grid"
    trials: int | None = None
    seed: int = 0
    storage: str | Path | None = None
    out: Path | None = None
    has_parquet: bool = False
    workers: int | None = None
    limit_s: float = LIMIT_S
    progress: Progress = field(default=lambda standing: None)


def sweep(
    path: PathLike,
    axes: Mapping[str, Any],
    *,
    where: str | Sequence[str] = (),
    preset: str | None = None,
    schedule: PathLike | None = None,
    baseline: Mapping[str, Any] | None = None,
    machine: PathLike | None = None,
    sampler: str = "grid",
    trials: int | None = None,
    seed: int = 0,
    storage: PathLike | None = None,
    out: PathLike | None = None,
    parquet: bool = False,
    backend: str = "auto",
    devices: Mapping[str, int] | Sequence[int] | None = None,
    inputs: str | None = None,
    rounds: int = 5,
    replays: int = 3,
    steps: int = 0,
    workers: int | None = None,
    limit_s: float = LIMIT_S,
    kernels: Folders = (),
    routes: Folders = (),
    progress: Progress | None = None,
    **values: Any,
) -> Sweep:
    """Try a spec's schedules over ``axes``; find the fastest that leaves the baseline's bits.

    An axis is a param, or a value of the schedule by its path, with a list of values or a word such
    as ``"1:64"``; ``where`` are conditions over them. ``values`` are the same for all candidates.
    The baseline is the spec at these values, with ``baseline`` laid over them.

    With a ``machine`` (a profile: a file or the name of a shipped one) times are predicted, and no
    GPU is needed; else they are measured, ``rounds`` times in turn with the baseline. ``inputs``
    ("module:function") gives arrays for a graph in place of random ones; ``steps`` replays more
    tell the time of every step, too. ``storage`` (a file, or the URL of a database that several
    processes share; in ``out`` by default) is what a sweep that was stopped goes on with. ``out``
    is a folder for rows.jsonl and best.yaml. ``workers=0`` judges candidates in this process.
    """
    judged_by, settings = evaluator(
        machine, backend=backend, devices=devices, inputs=inputs, rounds=rounds, replays=replays,
        steps=steps, seed=seed,
    )  # fmt: skip
    job = Job(
        str(spec_path(checked_path(path, "a spec"))),
        judged_by,
        {name: plain_value(value) for name, value in values.items()},
        {name: plain_value(value) for name, value in (baseline or {}).items()},
        preset,
        None if schedule is None else str(checked_path(schedule, "a schedule")),
        tuple(str(each.absolute()) for each in folders("kernels", kernels)),
        tuple(str(each.absolute()) for each in folders("routes", routes)),
        settings,
    )
    conditions = (where,) if isinstance(where, str) else tuple(where)
    return run_sweep(
        Wanted(
            Space(job, axes_of(axes), conditions),
            sampler,
            trials,
            seed,
            storage,
            None if out is None else checked_path(out, "a folder"),
            parquet,
            workers,
            limit_s,
            progress or (lambda standing: None),
        )
    )


def evaluator(machine: PathLike | None, **settings: Any) -> tuple[str, dict[str, Any]]:
    """What judges candidates, and what it has to know."""
    if machine is not None:
        return simulated.EVALUATOR, {"machine": simulated.checked_machine(machine)}
    return measured.EVALUATOR, measured.checked_settings(settings)


def run_sweep(wanted: Wanted) -> Sweep:
    """Check what was asked for, then go on with what its storage has."""
    space = wanted.space
    optuna()
    check_wanted(wanted)
    check_space(space)
    rows: dict[str, Row] = {}
    batches = chunks(space, wanted.sampler, wanted.trials, wanted.seed, rows)
    first = next(batches)  # mistakes are told before anything is started
    out = made_folder(wanted.out)
    storage = wanted.storage or (out / LOCAL if out is not None else None)
    identity = identity_of(space.job, space.axes, space.where, wanted.sampler, wanted.seed)
    most = cores() if simulated.is_simulated(space.job) else 1
    total = len(first) if wanted.sampler == GRID else wanted.trials or TRIALS
    count = enough(total, most) if wanted.workers is None else min(total, wanted.workers)
    with (
        closing(Ledger(storage, identity, space.axes, abandoned_s=5 * wanted.limit_s)) as ledger,
        closing(workers_of(space.job, count, wanted.limit_s)) as workers,
    ):
        run = Run(wanted, ledger, workers, rows, out)
        baseline = run.begin(total)
        for batch in chain([first], batches):
            run.all_of(batch)
    found = tuple(sorted(rows.values(), key=place))
    result = Sweep(load_spec(space.job.path).name, space.axes, baseline, found, run.best, out)
    if out is not None:
        write_results(out, result, space.job, has_parquet=wanted.has_parquet)
    return result


def check_wanted(wanted: Wanted) -> None:
    if wanted.workers is not None and not 0 <= wanted.workers <= MOST_WORKERS:
        raise UsageError(f"'workers' is a number from 0 to {MOST_WORKERS}, not {wanted.workers}")
    if wanted.has_parquet and wanted.out is None:
        raise UsageError("rows.parquet is written to the folder of --out (out=): name one, too")
    if wanted.has_parquet:
        check_parquet()


def check_space(space: Space) -> None:
    """Refuse what no candidate could be compiled of: the baseline is."""
    job = space.job
    if not isinstance(load_spec(job.path), LayerSpec):
        raise UsageError(
            f"'{job.path}' is a hand-written schedule: it is what it is, and has nothing to sweep"
        )
    check_names(job, space.axes)
    for each in space.where:
        check_expression(each, Span(f"--where {each}", 0, 0, 0))
    with noted(Note("the baseline of a sweep has to compile")):
        check(job.path, **job.options(job.baseline))


def made_folder(path: Path | None) -> Path | None:
    if path is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise cannot_write(path, "it is a file: name a folder") from None
        except OSError as problem:
            raise cannot_write(path, str(problem.strerror)) from None
    return path


@dataclass(slots=True)
class Run:
    """The loop: claims, candidates to workers, outcomes to rows."""

    wanted: Wanted
    ledger: Ledger
    workers: Workers
    rows: dict[str, Row]  # of the candidates of this sweep, as the search sees them
    out: Path | None
    total: int = 0
    best: Row | None = None
    not_ok: int = 0

    def begin(self, total: int) -> Outcome:
        """The baseline, as it was when the sweep was first begun."""
        self.total = total
        baseline = self.ledger.baseline
        if baseline is None:
            baseline = self.workers.baseline
            self.ledger.keep_baseline(baseline)
        if self.out is not None:
            write_lines(self.out / ROWS, sorted(self.ledger.rows.values(), key=place))
        return baseline

    def all_of(self, batch: Sequence[Candidate]) -> None:
        """Come to have a row of every candidate: of our own workers, or of another process."""
        left = {each.key: each for each in batch}
        queue: deque[Candidate] = deque()  # ours, and not given yet
        given = 0
        while left:
            self.take_known(left)
            if len(queue) < self.workers.count:
                queue.extend(self.claimed(left))
            given += self.given(queue)
            if not queue and not given and left:
                time.sleep(LOOK_S)  # others have the rest: see what became of it
                self.ledger.refresh()
                self.tell(None, waits_for=len(left))
            elif queue or given:
                found = self.workers.collect(LOOK_S)
                given += self.given(queue) - len(found)  # before rows are kept: nobody waits
                for row in (Row(candidate, outcome) for candidate, outcome in found):
                    self.ledger.record(row)
                    if row.candidate.key in left:  # else another took it over, and was sooner
                        self.keep(row, left, is_new=True)

    def given(self, queue: deque[Candidate]) -> int:
        """Give what is ours to workers that have nothing to do."""
        count = 0
        while queue and self.workers.idle:
            self.workers.give(queue.popleft())
            count += 1
        return count

    def claimed(self, left: Mapping[str, Candidate]) -> list[Candidate]:
        """A few of those that nobody has."""
        free = (each for key, each in left.items() if self.ledger.is_free(key))
        wanted = list(islice(free, AHEAD * max(1, self.workers.count)))
        return self.ledger.claim(wanted) if wanted else []

    def take_known(self, left: dict[str, Candidate]) -> None:
        """Rows that the storage has, of an earlier run or of others."""
        if len(self.ledger.rows) == len(self.rows):
            return
        for key in [key for key in left if key in self.ledger.rows]:
            self.keep(self.ledger.rows[key], left, is_new=False)

    def keep(self, row: Row, left: dict[str, Candidate], *, is_new: bool) -> None:
        key = row.candidate.key
        del left[key]
        self.rows[key] = row
        self.not_ok += not row.is_ok
        self.best = best_of([row] if self.best is None else [self.best, row])
        if self.out is not None and is_new:
            append_lines(self.out / ROWS, [row])
        self.tell(row)

    def tell(self, last: Row | None, *, waits_for: int = 0) -> None:
        done = len(self.rows)
        total = max(self.total, done)
        self.wanted.progress(Standing(done, total, self.best, last, self.not_ok, waits_for))


def place(row: Row) -> int:
    return row.candidate.index


def write_results(out: Path, result: Sweep, job: Job, *, has_parquet: bool) -> None:
    write_lines(out / ROWS, result.rows)
    if result.best is not None:
        write_best(out / BEST, job, result.best, praise(result))
    if has_parquet:
        write_parquet(out / PARQUET, result.rows)


def praise(result: Sweep) -> str:
    assert result.best is not None
    outcome = result.best.outcome
    assert outcome.us is not None
    assert outcome.relative is not None
    what = f"The best of {len(result.rows)} schedules of {result.name}"
    return (
        f"{what}: {result.best.candidate.label}\n"
        f"{outcome.us:.1f} us ({outcome.basis.value}), "
        f"{1 / outcome.relative:.2f} times as fast as the baseline"
    )
