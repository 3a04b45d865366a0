"""Candidates as a machine profile predicts them: proven, and no kernel rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphc.pipeline import collector_paused
from graphc.plan import checked_path
from graphc.predict import Chosen, placed_on, schedule_for
from graphc.profiles import load_profile
from graphc.resources import machine_path
from graphc.simulation.predict import predict
from graphc.sweeps.job import Job
from graphc.sweeps.rows import Basis, Outcome, Status
from graphc.text.words import Value

EVALUATOR = "graphc.sweeps.simulated:Simulated"


class Simulated:
    """An evaluator: see ``graphc.sweeps.job``."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.profile = load_profile(job.settings["machine"])
        self.baseline = self.predicted(job.baseline)
        self.baseline = replace(self.baseline, relative=1.0)

    def evaluate(self, values: Mapping[str, Value]) -> Outcome:
        found = self.predicted(values)
        assert found.us is not None
        assert self.baseline.us is not None
        return replace(found, relative=found.us / self.baseline.us)

    @collector_paused()
    def predicted(self, values: Mapping[str, Value]) -> Outcome:
        chosen = schedule_for(self.job.path, self.profile, **self.job.options(values))
        program = chosen.schedule.program
        found = predict(
            chosen.schedule,
            self.profile,
            catalog=chosen.catalog,
            placed=placed_on(program, self.profile, None),
            count=program.capacity,
        )
        return Outcome(
            Status.OK,
            Basis.PREDICTED,
            us=found.total_us,
            params=chosen.params,
            facts={**facts_of(chosen), "launch_us": found.launch_us},
        )

    def is_sound(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held."""


def facts_of(chosen: Chosen) -> dict[str, Any]:
    assert chosen.proof is not None
    return {
        "routes": sorted(set(chosen.routes.values())),
        "ops": chosen.proof.ops,
        "proven_pairs": chosen.proof.pairs,
    }


def checked_machine(machine: Any) -> Path:
    """The profile's file, once it has been read."""
    load_profile(checked_path(machine, "a machine profile"))
    return machine_path(machine)


def is_simulated(job: Job) -> bool:
    return job.evaluator == EVALUATOR
