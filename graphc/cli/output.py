"""Data to stdout, messages to stderr; files whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from graphc.text.diagnostics import printable
from graphc.text.units import bytes_text as bytes_text
from graphc.text.write import write_whole


class Progress(Protocol):
    """Says what is going on."""

    def __call__(self, what: str, /) -> None: ...


def print_json(facts: Mapping[str, Any]) -> None:
    print(json.dumps(facts, indent=1))


def say(text: str) -> None:
    """Print what a person reads, without what a terminal would obey."""
    print(printable(text))


def note(message: str) -> None:
    print(printable(message), file=sys.stderr)


def write_text(path: Path, content: str) -> None:
    """Write a file so that a reader finds the old one or the new one, never a part."""
    write_whole(path, content.encode())


@contextmanager
def progress() -> Iterator[Progress]:
    """A line on stderr that tells the step at work, if somebody looks at a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda what, /: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda what, /: status.update(Text(printable(what)))


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "op"), plural(1200, "op")
    ('1 op', '1,200 ops')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as text: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    )
