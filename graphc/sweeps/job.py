"""What every worker of a sweep is told: the spec, its values, and how candidates are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from graphc.sweeps.rows import Outcome
from graphc.text.diagnostics import UsageError
from graphc.text.words import Value

ORIGIN = "{name}={value}"  # what messages call the place of a candidate's value


@dataclass(frozen=True, slots=True)
class Job:
    """Plain data: a worker is another process."""

    path: str
    evaluator: str  # "module:class", made of the job in each worker
    fixed: Mapping[str, Value] = field(default_factory=dict)
    baseline: Mapping[str, Value] = field(default_factory=dict)  # over the fixed values
    preset: str | None = None
    schedule: str | None = None
    kernels: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # the evaluator's own

    def options(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """The keyword arguments of ``graphc.api.compile`` and ``check``."""
        return {
            "preset": self.preset,
            "schedule": self.schedule,
            "kernels": self.kernels,
            "routes": self.routes,
            "origin": ORIGIN,
            **laid_over(self.fixed, values),
        }


class Evaluator(Protocol):
    """Judges candidates, one after the other, beside a baseline that it keeps."""

    baseline: Outcome

    def evaluate(self, values: Mapping[str, Value]) -> Outcome: ...

    def is_sound(self) -> bool:
        """Whether it can go on in this process."""
        ...

    def close(self) -> None: ...


def laid_over(below: Mapping[str, Value], above: Mapping[str, Value]) -> dict[str, Value]:
    """Values of which the latter win, whether or not their paths begin with ``schedule.``.

    >>> laid_over({"a": 1, "schedule.b.pieces": 2}, {"b.pieces": 3})
    {'a': 1, 'b.pieces': 3}
    """
    hidden = {path_of(name) for name in above}
    return {name: each for name, each in below.items() if path_of(name) not in hidden} | {**above}


def path_of(name: str) -> str:
    return name.removeprefix("schedule.")


def evaluator_of(job: Job) -> Evaluator:
    found: Evaluator = named(job.evaluator, "the evaluator")(job)
    return found


def named(word: str, what: str) -> Any:
    """What ``module:name`` names."""
    module, colon, name = word.partition(":")
    try:
        found: Any = import_module(module) if colon else None
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as problem:
        raise UsageError(f"{what} '{word}' cannot be found: {problem}") from None
    return found
