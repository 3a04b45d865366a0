"""A schedule for a machine, by its profile: where a real sweep can start from.

Coordinates are the params that nothing but the schedule uses, the number of compute streams, and
the shapes of the schedule's cuts. From a few starts, which differ in the route, each coordinate in
turn takes the value that is predicted to be best, until none makes it better.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphc.predict import predicted, schedule_for
from graphc.profiles import ProfileSpec, load_profile
from graphc.resources import spec_path
from graphc.spec.model import LayerSpec, ParamSpec, load_spec
from graphc.sweeps.best import write_best
from graphc.sweeps.job import Job
from graphc.sweeps.rows import Basis, Candidate, Outcome, Row, Status
from graphc.text.diagnostics import SpecError, UsageError
from graphc.text.expr import mentions

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SHAPES = (
    ["1/4", "1/2", "1/4"],
    ["3/8", "3/8", "1/4"],
    ["1/4", "3/8", "3/8"],
    ["1/2", "1/4", "1/4"],
)
STREAMS = "schedule.max_streams"
CUT = "schedule.cuts."
STARTS = 2  # of the routes, the best are looked at further
ROUNDS = 3
GAIN = 0.001  # what counts as better

Told = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Suggestion:
    values: Mapping[str, Any]  # that differ from what was given
    total_us: float
    given_us: float  # as it was given
    tried: int
    params: Mapping[str, Any]  # all of the spec's, as suggested


@dataclass(slots=True)
class Search:
    """Schedules by their values, each predicted once."""

    path: Path
    profile: ProfileSpec
    count: int | None
    entry: str | None
    options: Mapping[str, Any]
    told: Told
    known: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)
    params: dict[tuple[tuple[str, str], ...], Mapping[str, Any]] = field(default_factory=dict)

    def us(self, values: Mapping[str, Any]) -> float:
        """The predicted time; infinite where these values do not go together."""
        key = key_of(values)
        if key not in self.known:
            try:
                self.known[key] = self.predicted(values)
            except (SpecError, UsageError):
                self.known[key] = float("inf")
            self.told(len(self.known), min(self.known.values()))
        return self.known[key]

    def predicted(self, values: Mapping[str, Any]) -> float:
        chosen = schedule_for(self.path, self.profile, **{**self.options, **values})
        self.params[key_of(values)] = chosen.params
        return predicted(chosen, self.profile, count=self.count, entry=self.entry).total_us


def key_of(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(each)) for name, each in values.items()))


def nobody(tried: int, best_us: float) -> None:
    """Told of the progress, and does nothing with it."""


def suggest(
    path: str | Path,
    machine: ProfileSpec | str | Path,
    /,
    *,
    count: int | None = None,
    entry: str | None = None,
    told: Told = nobody,
    **options: Any,
) -> Suggestion:
    """The values of a spec's schedule that a machine's profile predicts to be best.

    Of several entries the time of the first counts, or that of ``entry``. ``options`` are those of
    ``graphc.check``; a value given there stays as it is.
    """
    profile = machine if isinstance(machine, ProfileSpec) else load_profile(machine)
    return suggested(path, profile, count, entry, told, **options)


def suggested(
    path: str | Path,
    profile: ProfileSpec,
    count: int | None,
    entry: str | None,
    told: Told,
    /,
    **options: Any,
) -> Suggestion:
    """``suggest``, with every name free for a param of the spec."""
    spec = load_spec(spec_path(path))
    if not isinstance(spec, LayerSpec):
        raise UsageError(f"'{path}' is a hand-written schedule: it stays as it is written")
    search = Search(spec_path(path), profile, count, entry, options, told)
    given_us = search.predicted({})
    search.known[()] = given_us
    axes = {
        name: values
        for name, values in axes_of(spec, profile).items()
        if not is_given(name, options)
    }
    starts = sorted(starts_of(spec, axes), key=lambda each: (search.us(each), key_of(each)))
    best: Mapping[str, Any] = {}
    for start in starts[:STARTS]:
        found = descend(search, axes, start)
        if search.us(found) < search.us(best) * (1 - GAIN):
            best = found
    return Suggestion(
        best, search.us(best), given_us, len(search.known), search.params[key_of(best)]
    )


def is_given(name: str, options: Mapping[str, Any]) -> bool:
    return name in options or name.removeprefix("schedule.") in options


def axes_of(spec: LayerSpec, profile: ProfileSpec) -> dict[str, list[Any]]:
    """What may be varied, and over which values."""
    axes = {
        name: values
        for name, param in spec.params.items()
        if is_of_schedule(name, spec) and len(values := domain(param, profile)) > 1
    }
    for cut in spec.schedule.cuts:
        axes[CUT + cut] = [list(each) for each in SHAPES]
    axes[STREAMS] = [1, 2, 4]
    return axes


def is_of_schedule(name: str, spec: LayerSpec) -> bool:
    """Whether the schedule uses the param, by way of ``let``, too, and nothing else does."""
    data = spec.site.document.data
    names = {name}
    for let, value in (data.get("let") or {}).items():
        if mentions(value, names):
            names.add(let)
    # Elsewhere the name of a cut is the cut.
    elsewhere = [data.get(section) for section in ("ops", "buffers", "cuts")]
    return mentions(data.get("schedule"), names) and not mentions(elsewhere, names - {*spec.cuts})


def domain(param: ParamSpec, profile: ProfileSpec) -> list[Any]:
    """Numbers up to what is worth a try; 0 where it is the default and stands for no bound."""
    if param.choices:
        return list(param.choices)
    if isinstance(param.default, bool):
        return [True, False]
    if not isinstance(param.default, int):
        return []
    sms = profile.gpus.sms
    found = [*COUNTS, *((0, sms - 16, sms - 8) if param.default == 0 else ())]
    least = param.min if isinstance(param.min, int) else 0
    most = param.max if isinstance(param.max, int) else max(found)
    return sorted({each for each in found if least <= each <= most})


def starts_of(spec: LayerSpec, axes: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """One for each route, with few and with many pieces."""
    routes = [name for name in axes if routes_by(spec, name)]
    pieces = [name for name in axes if re.search(r"\bpieces?\b", name)]
    ways: list[dict[str, Any]] = [{}]
    for name in routes:
        ways = [{**way, name: value} for way in ways for value in axes[name]]
    for way in ways:
        yield way
        for name in pieces:
            for value in (1, 8, 16):
                if value in axes[name]:
                    yield {**way, name: value}


def routes_by(spec: LayerSpec, name: str) -> bool:
    """Whether the param is what transfers take as their route."""
    return any(mentions(each.route, {name}) for each in spec.schedule.placements.values())


def descend(
    search: Search, axes: Mapping[str, list[Any]], start: Mapping[str, Any]
) -> Mapping[str, Any]:
    best = dict(start)
    for _ in range(ROUNDS):
        before = dict(best)
        for name, values in axes.items():
            for value in values:
                other = {**best, name: value}
                if search.us(other) < search.us(best) * (1 - GAIN):
                    best = other
            without = {other: each for other, each in best.items() if other != name}
            if search.us(without) <= search.us(best):
                best = without
        if best == before:
            break
    return best


def write_suggestion(
    target: Path, path: str | Path, profile: ProfileSpec, found: Suggestion, /, **options: Any
) -> None:
    """The suggestion as a schedule file; with the same preset it compiles to the same plan."""
    origin, preset, schedule, kernels, routes = (
        options.pop(name, None) for name in ("origin", "preset", "schedule", "kernels", "routes")
    )
    del origin
    job = Job(
        str(spec_path(path)),
        "",
        fixed=options,
        preset=preset,
        schedule=str(schedule) if schedule else None,
        kernels=tuple(map(str, kernels or ())),
        routes=tuple(map(str, routes or ())),
    )
    outcome = Outcome(Status.OK, Basis.PREDICTED, us=found.total_us, params=found.params)
    why = f"Predicted for machine {profile.name}: {found.total_us:.0f} us."
    write_best(target, job, Row(Candidate(0, dict(found.values)), outcome), why)
