"""The points of a sweep: what the axes span, less what the conditions leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from random import Random
from typing import Any

from graphc.spec.faults import Faults
from graphc.spec.model import GLOBALS, LayerSpec, PlacementSpec, load_spec
from graphc.spec.names import written_ops
from graphc.spec.values import Given, is_schedule_name, read_schedule_file, set_by, values_of
from graphc.sweeps.axes import Axis
from graphc.sweeps.job import Job, laid_over, path_of
from graphc.sweeps.rows import Candidate
from graphc.text.diagnostics import Span, UsageError
from graphc.text.expr import evaluate
from graphc.text.suggest import did_you_mean
from graphc.text.words import Value

MOST_CANDIDATES = 1_000_000
ENTRY = tuple(PlacementSpec.model_fields)


@dataclass(frozen=True)
class Space:
    """What is varied, over what."""

    job: Job
    axes: tuple[Axis, ...]
    where: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """How many there are before the conditions."""
        return prod(len(each.values) for each in self.axes)

    @cached_property
    def scope_of(self) -> Callable[[Mapping[str, Value]], dict[str, Any]]:
        return scopes(self.job)

    def grid(self, trials: int | None, seed: int) -> list[Candidate]:
        """All points that are allowed, the last axis fastest; or some of them, by the seed."""
        if self.points > MOST_CANDIDATES:
            raise UsageError(
                f"the axes span {self.points:,} candidates, more than {MOST_CANDIDATES:,}: give "
                "fewer values (1:64:x2 doubles), or search with --sampler tpe --trials 200"
            )
        names = [each.name for each in self.axes]
        rows = product(*(each.values for each in self.axes))
        points = (dict(zip(names, row, strict=True)) for row in rows)
        found = [Candidate(index, each) for index, each in enumerate(points) if self.allows(each)]
        if not found:
            raise UsageError(f"no candidate is left: none of {self.points:,} fits the conditions")
        if trials is not None and trials < len(found):
            chosen = Random(seed).sample(range(len(found)), len(found))[:trials]
            found = [found[at] for at in sorted(chosen)]
        return found

    def allows(self, values: Mapping[str, Value]) -> bool:
        if not self.where:
            return True
        scope = self.scope_of(values)
        return all(evaluate(each, scope, Span(f"--where {each}", 0, 0, 0)) for each in self.where)


def scopes(job: Job) -> Callable[[Mapping[str, Value]], dict[str, Any]]:
    """Makes what a condition may name: params, derived values, and what axes set by path.

    A value that does not fit its param is the compiler's to refuse, when its turn comes: here the
    default stands for it.
    """
    spec = load_spec(job.path)
    own: Mapping[str, Given] = {}
    if job.schedule is not None:
        own = read_schedule_file(job.schedule, Faults())[1]

    def scope_of(values: Mapping[str, Value]) -> dict[str, Any]:
        every = laid_over(job.fixed, values)
        given = {
            name: Given(value, set_by(name, value, "{name}={value}"))
            for name, value in every.items()
            if not is_schedule_name(name, spec)
        }
        found = values_of(spec, {**own, **given}, job.preset, Faults())
        return {**{path_of(name): value for name, value in every.items()}, **found.scope}

    return scope_of


def check_names(job: Job, axes: tuple[Axis, ...]) -> None:
    """Refuse an axis that is no param and no value of the schedule, before anything is compiled."""
    spec = load_spec(job.path)
    assert isinstance(spec, LayerSpec)  # a hand-written schedule has been refused
    for axis in axes:
        names = (*spec.params, *GLOBALS)
        if axis.path in names or axis.name in spec.params:
            continue
        op, dot, field = axis.path.rpartition(".")
        known = list(written_ops(spec.site.document.data))
        is_cut = op == "cuts" and field in spec.cuts
        is_used = "/" in op and op.partition("/")[0] in known  # of a file of ops: compiling tells
        if dot and (is_cut or ((op in known or is_used) and field in ENTRY)):
            continue
        if dot and op in known:
            hint = did_you_mean(field, ENTRY) or f"an op has {', '.join(ENTRY)}"
            raise UsageError(f"axis '{axis.name}': '{op}' has no '{field}': {hint}")
        paths = [f"{name}.pieces" for name in known] + [f"cuts.{name}" for name in spec.cuts]
        params = f"the params are {', '.join(spec.params) or 'none'}"
        hint = did_you_mean(axis.path, (*names, *paths)) or params
        raise UsageError(
            f"axis '{axis.name}' is no param of '{spec.name}', and no value of its schedule: {hint}"
        )
