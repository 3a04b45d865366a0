"""Files are written whole or not at all: a reader finds the old one or the new one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from graphc.text.diagnostics import SpecError, error


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the file first, then put it in its place; ``cannot-write`` says why not."""
    if path.is_dir():  # which "." is, too: it has no name to write beside
        raise cannot_write(path, "it is a folder: name a file")
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as problem:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise cannot_write(path, str(problem.strerror)) from None


def check_place(path: Path | None) -> None:
    """Tell before hours of work what would be told after them: no file can be written there."""
    if path is None:
        return
    if path.is_dir():
        raise cannot_write(path, "it is a folder: name a file")
    if not path.absolute().parent.is_dir():
        raise cannot_write(path, f"there is no folder '{path.parent}'")


def cannot_write(path: Path, why: str) -> SpecError:
    return error("cannot-write", f"cannot write '{path}': {why}")
