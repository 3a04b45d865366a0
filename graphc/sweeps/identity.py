"""What makes two sweeps the same, so that one can go on with the rows of the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from graphc import __version__
from graphc.sweeps.axes import Axis
from graphc.sweeps.job import Job
from graphc.sweeps.rows import word_of
from graphc.text.load import read_yaml


def identity_of(
    job: Job, axes: Sequence[Axis], where: Sequence[str], sampler: str, seed: int
) -> dict[str, Any]:
    """Plain data, each under a name that a message can use; files by what is in them."""
    found = {
        "spec": digest(files_of(Path(job.path))),
        "schedule": digest([Path(job.schedule)]) if job.schedule else None,
        "kernels and routes": digest(of_folders((*job.kernels, *job.routes))),
        "graphc": __version__,
        "axes": {each.path: [word_of(value) for value in each.values] for each in axes},
        "conditions": list(where),
        "values": words(job.fixed),
        "preset": job.preset,
        "baseline": words(job.baseline),
        "sampler": sampler,
        "seed": seed,
        "judged by": job.evaluator,
        "settings": {
            name: digest([value]) if isinstance(value, Path) else value
            for name, value in job.settings.items()
        },
    }
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def words(values: Mapping[str, Any]) -> dict[str, str]:
    return {name.removeprefix("schedule."): word_of(value) for name, value in values.items()}


def digest(paths: Sequence[Path]) -> str:
    found = sha256()
    for each in paths:
        found.update(each.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def files_of(spec: Path) -> list[Path]:
    """A spec and the files of ops that it uses, and those that they use."""
    found, left = [], [spec]
    while left:
        path = left.pop()
        if path in found or not path.is_file():
            continue  # a file that is missing is the compiler's to name
        found.append(path)
        left += [path.parent / each for each in uses_of(read_yaml(path).data)]
    return found


def uses_of(data: Any) -> Iterator[str]:
    entries = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    if isinstance(data, dict) and isinstance(data.get("use"), str):
        yield data["use"]
    for each in entries:
        yield from uses_of(each)


def of_folders(folders: Sequence[str]) -> list[Path]:
    return sorted(path for each in folders for path in Path(each).rglob("*") if path.is_file())
