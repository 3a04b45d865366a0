"""The winner as a schedule file, which ``compile --schedule`` takes; it sets params, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from graphc.spec.faults import Faults
from graphc.spec.model import LayerSpec, load_spec
from graphc.spec.values import (
    Given,
    entry,
    is_schedule_name,
    read_schedule_file,
    schedule_in_force,
    set_by,
)
from graphc.sweeps.job import Job, laid_over
from graphc.sweeps.rows import Row
from graphc.text.write import write_whole


def write_best(path: Path, job: Job, row: Row, why: str) -> None:
    """Write the schedule of a row; with the same preset, or none, it compiles to the same plan."""
    lines = [f"# {line}" for line in why.splitlines()]
    text = yaml.safe_dump(schedule_data(job, row), sort_keys=False, allow_unicode=True, width=100)
    write_whole(path, "\n".join([*lines, text]).encode())


def schedule_data(job: Job, row: Row) -> dict[str, Any]:
    spec = load_spec(job.path)
    assert isinstance(spec, LayerSpec)
    faults = Faults()
    base = None
    own: Mapping[str, Given] = {}
    if job.schedule is not None:
        base, own = read_schedule_file(job.schedule, faults)
    values = laid_over(job.fixed, row.candidate.values)
    of_schedule = {
        name: Given(value, set_by(name, value, "{name}={value}"))
        for name, value in values.items()
        if is_schedule_name(name, spec)
    }
    found = schedule_in_force(spec, base, of_schedule, faults)
    data = entry(found.site.document.data, found.site.path)
    data.pop("params", None)
    named = {*own, *spec.presets.get(job.preset or "", {}), *(set(values) - set(of_schedule))}
    params = {name: row.outcome.params[name] for name in spec.params if name in named}
    return {"params": params, **data} if params else data
