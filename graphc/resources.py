"""Where the shipped kernels, specs and routes lie: in the source tree, or inside the wheel."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped(folder: str) -> Path:
    """The folder ``templates`` or ``specs`` that came with graphc."""
    installed = PACKAGE / "data" / folder
    return installed if installed.is_dir() else PACKAGE.parent / folder


def kernel_folders(own: Iterable[str | Path] = ()) -> tuple[Path, ...]:
    return (*map(Path, own), shipped("templates"))


def route_folders(own: Iterable[str | Path] = ()) -> tuple[Path, ...]:
    return (*map(Path, own), shipped("specs") / "routes")
