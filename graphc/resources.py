"""Where the shipped kernels, specs and routes lie: in the source tree, or inside the wheel."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped(folder: str) -> Path:
    """The folder ``templates`` or ``specs`` that came with graphc."""
    installed = PACKAGE / "data" / folder
    return installed if installed.is_dir() else PACKAGE.parent / folder


def spec_path(path: str | Path) -> Path:
    """The file itself; where there is none, the shipped spec of that name, if there is one.

    >>> spec_path("moe_peer").name, spec_path("no_such_spec").name
    ('moe_peer.yaml', 'no_such_spec')
    """
    given = Path(path)
    if given.suffix or given.is_absolute() or given.exists():
        return given
    named = shipped("specs") / f"{given}.yaml"
    return named if named.is_file() else given


def machine_path(path: str | Path) -> Path:
    """The file itself; where there is none, the shipped machine profile of that name.

    >>> machine_path("h200x2").name, machine_path("mine.yaml").name
    ('h200x2.yaml', 'mine.yaml')
    """
    given = Path(path)
    if given.suffix or given.is_absolute() or given.exists():
        return given
    return shipped("specs") / "machines" / f"{given}.yaml"


def kernel_folders(own: Iterable[str | Path] = ()) -> tuple[Path, ...]:
    return (*map(Path, own), shipped("templates"))


def route_folders(own: Iterable[str | Path] = ()) -> tuple[Path, ...]:
    return (*map(Path, own), shipped("specs") / "routes")
