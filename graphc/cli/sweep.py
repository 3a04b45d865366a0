"""``graphc sweep``: many schedules, a table of the best, and the winner as a schedule file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.output import columns, note, plural, print_json, say, write_text
from graphc.cli.request import Request, assignment, profile_of, refuse_plan
from graphc.text.diagnostics import UsageError, printable
from graphc.text.units import us_text as us
from graphc.text.write import check_place

if TYPE_CHECKING:
    from graphc.sweeps.job import Job
    from graphc.sweeps.rows import Row
    from graphc.sweeps.sweep import Progress, Standing, Sweep

BEST = 10  # rows of the table
REASONS = 5  # that are told of candidates that are not ok
NONE_LEFT = 1  # the exit code when no candidate is ok


@dataclass(frozen=True, slots=True)
class SweepOptions:
    axes: tuple[str, ...]
    where: tuple[str, ...]
    simulate: str | None
    baseline: tuple[str, ...]
    sampler: str
    trials: int | None
    seed: int
    storage: str | None
    out: Path | None
    backend: str
    inputs: str | None
    rounds: int
    replays: int
    steps: int
    workers: int | None
    limit_s: float
    has_parquet: bool
    html: Path | None
    machine: Path | None  # whose predictions stand beside what was measured, on the page
    is_json: bool


def run_sweep_command(wanted: Request, options: SweepOptions) -> int:
    refuse_plan(wanted, "sweep")
    check_machine(wanted, options)
    check_place(options.html)
    with bar(options.out) as progress:
        result = swept(wanted, options, progress)
    if not options.is_json:
        tell(
            result, given_to_baseline(wanted, options)
        )  # before a page that may fail, for without --out nothing else has the rows
    if options.html is not None:
        write_page(result, options.html, predictions(wanted, options, result))
    if options.is_json:
        print_json(result.to_json())
    return NONE_LEFT if result.best is None else 0


def check_machine(wanted: Request, options: SweepOptions) -> None:
    """Read the profile of what is to be predicted, before anything else takes long."""
    if options.machine is not None and options.html is None:
        raise UsageError("--machine sets predictions beside what is measured: give --html, too")
    if options.machine is not None and options.simulate is not None:
        raise UsageError("--simulate predicts already: leave --machine out")
    machine = options.simulate or options.machine
    if machine is not None:
        profile_of(wanted, machine)


def swept(wanted: Request, options: SweepOptions, progress: Progress) -> Sweep:
    from graphc.sweeps.axes import checked, parse_axis
    from graphc.sweeps.space import Space
    from graphc.sweeps.sweep import Wanted, evaluator, run_sweep

    axes = checked(tuple(map(parse_axis, options.axes)))
    judged_by, settings = evaluator(
        options.simulate,
        backend=options.backend,
        devices=None,
        inputs=options.inputs,
        rounds=options.rounds,
        replays=options.replays,
        steps=options.steps,
        seed=options.seed,
    )
    job = job_of(wanted, options, judged_by, settings)
    return run_sweep(
        Wanted(
            Space(job, axes, options.where),
            options.sampler,
            options.trials,
            options.seed,
            options.storage,
            options.out,
            options.has_parquet,
            options.workers,
            options.limit_s,
            progress,
        )
    )


def job_of(
    wanted: Request, options: SweepOptions, judged_by: str, settings: Mapping[str, Any]
) -> Job:
    from graphc.sweeps.job import Job

    return Job(
        str(wanted.path),
        judged_by,
        wanted.values,
        dict(assignment(each) for each in options.baseline),
        wanted.preset,
        None if wanted.schedule is None else str(wanted.schedule),
        tuple(str(each.absolute()) for each in wanted.kernels),
        tuple(str(each.absolute()) for each in wanted.routes),
        settings,
    )


def predictions(wanted: Request, options: SweepOptions, result: Sweep) -> dict[int, float]:
    """By candidate, what the machine's profile predicts; not of what it cannot run."""
    from contextlib import suppress

    from graphc.sweeps.simulated import EVALUATOR, Simulated

    if options.machine is None:
        return {}
    found: dict[int, float] = {}
    judge = Simulated(job_of(wanted, options, EVALUATOR, {"machine": str(options.machine)}))
    for each in result.rows:
        with suppress(UsageError):
            us = judge.predicted(each.candidate.values).us if each.is_ok else None
            if us is not None:
                found[each.candidate.index] = us
    return found


def write_page(result: Sweep, path: Path, predicted: Mapping[int, float]) -> None:
    """The curves of time by each axis as one HTML page."""
    from graphc.draw.look import sweep_page

    rows = [each.to_json() for each in result.rows]
    page = sweep_page(
        [row | {"predicted_us": predicted.get(row["index"])} for row in rows],
        name=result.name,
        axes=[each.name for each in result.axes],
        winner=None if result.best is None else result.best.candidate.index,
        basis=result.baseline.basis.value,
        baseline_us=result.baseline.us,
    )
    write_text(path, page)


@contextmanager
def bar(out: Path | None) -> Iterator[Callable[[Standing], None]]:
    """A bar on stderr with the best so far, if somebody looks at a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda standing: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    shown = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*shown, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("the baseline", total=None)
        yield lambda standing: progress.update(
            task,
            completed=standing.done,
            total=standing.total,
            description=printable(described(standing)),
        )
    if out is not None:
        note(f"rows are in {out}")


def described(standing: Standing) -> str:
    parts = []
    if standing.best is not None:
        parts.append(f"best {us(time_of(standing.best))}: {standing.best.candidate.label}")
    if standing.not_ok:
        parts.append(f"{standing.not_ok} not ok")
    if standing.waits_for:
        parts.append(f"waiting for {standing.waits_for} of others")
    return "; ".join(parts)


def given_to_baseline(wanted: Request, options: SweepOptions) -> dict[str, Any]:
    """What the command sets for it, by path; params are known anyway."""
    given = {**wanted.values, **dict(map(assignment, options.baseline))}
    return {name.removeprefix("schedule."): value for name, value in given.items()}


def tell(result: Sweep, given: Mapping[str, Any]) -> None:
    from graphc.sweeps.rows import ranked

    found = ranked(result.rows)
    not_ok = [each for each in result.rows if not each.is_ok]
    rest = f", {len(not_ok)} of them not ok" if not_ok else ""
    say(f"{result.name}: {plural(len(result.rows), 'candidate')}{rest}")
    if found:
        say(table(result, found[:BEST], given))
    for reason, count in reasons(not_ok)[:REASONS]:
        say(f"{plural(count, 'candidate')} {reason}")
    if result.best is None:
        note("error[no-candidate]: no candidate compiled, ran and left the baseline's bits")
    elif result.out is not None:
        say(f"wrote {result.out / 'best.yaml'}: graphc compile FILE --schedule takes it")


def table(result: Sweep, rows: Sequence[Row], given: Mapping[str, Any]) -> str:
    """The best few and the baseline: times, and what they rest on."""
    is_timed = "wins" in rows[0].outcome.facts
    names = [each.name for each in result.axes]
    head = [*names, result.baseline.basis.value, "of the baseline"]
    head += ["wins", "spread", "launch"] if is_timed else []
    cells = [tuple(head)]
    for row in rows:
        own = [word(row.candidate.values[name]) for name in names]
        cells.append((*own, *times(row.outcome.us, row.outcome.relative, row.outcome.facts)))
    base = result.baseline
    known = {**given, **base.params}
    own = [word(known[each.path]) if each.path in known else "" for each in result.axes]
    cells.append((*own, *times(base.us, None, {**base.facts, "wins": None}, is_timed)))
    return columns(cells)


def times(
    took_us: float | None,
    relative: float | None,
    facts: Mapping[str, Any],
    is_timed: bool | None = None,
) -> list[str]:
    found = [us(took_us or 0.0), "the baseline" if relative is None else f"{relative:.3f}"]
    if "wins" in facts and is_timed is not False:
        wins = "" if facts["wins"] is None else f"{facts['wins']}/{facts['rounds']}"
        launch = facts.get("launch_us")
        found += [wins, f"{facts['spread']:.1%}", "" if launch is None else us(launch)]
    return found


def word(value: Any) -> str:
    from graphc.sweeps.rows import word_of

    return word_of(value)


def time_of(row: Row) -> float:
    return row.outcome.us or 0.0


def reasons(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Why candidates are not ok, the most frequent reason first."""
    from collections import Counter

    found = Counter(f"{row.outcome.status.value}: {row.outcome.reason}" for row in rows)
    return found.most_common()
