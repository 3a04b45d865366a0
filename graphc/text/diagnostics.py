"""Positions in files, and the three kinds of errors: the author's, ours, the machine's.

A ``Span`` is kept by every object from the file to the schedule, so that every message can quote
what a person wrote. Rendering reads the source again; a file that is gone is named without a quote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a file: 1-based line and column, and how many characters it covers."""

    file: str
    line: int
    column: int
    length: int = 1

    def __str__(self) -> str:
        # Line 0: a value that stands in no file, such as one of the command line.
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


NOWHERE = Span("", 0, 0, 0)
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Note:
    """A second place that explains the first."""

    message: str
    span: Span = NOWHERE


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake: a kebab-case code, what was found and expected, where, and what to do."""

    code: str
    message: str
    span: Span = NOWHERE
    notes: tuple[Note, ...] = ()
    hint: str | None = None


class GraphcError(Exception):
    """The root of the three kinds; ``exit_code`` is what the command line ends with."""

    exit_code = 70


class SpecError(GraphcError):
    """The author's mistakes, all that one run could find, in file order (exit code 1)."""

    exit_code = 1

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics, key=lambda each: each.span))
        super().__init__("\n\n".join(render(each) for each in self.diagnostics))

    def __reduce__(self) -> tuple[Callable[..., SpecError], tuple[Any, ...]]:
        return SpecError, (self.diagnostics,)


class UsageError(GraphcError):
    """The caller's mistake at bind, launch or on the command line (exit code 2)."""

    exit_code = 2


class CompilerBug(GraphcError):
    """Ours: a pass broke what it promises (exit code 70)."""

    exit_code = 70

    def __init__(self, pass_name: str, message: str, *, dump: str | None = None) -> None:
        self.pass_name, self.message, self.dump = pass_name, message, dump
        where = f"\n  the stage was written to {dump}" if dump else ""
        super().__init__(
            f"error[compiler-bug]: {pass_name}: {message}{where}\n"
            "  this is a fault in graphc, not in the spec: please report it with the spec"
        )

    def __reduce__(self) -> tuple[Callable[..., CompilerBug], tuple[Any, ...]]:
        return partial(CompilerBug, dump=self.dump), (self.pass_name, self.message)


class CudaError(GraphcError):
    """The driver's or the machine's (exit code 3): the call, its error name, the op it was for.

    ``hint`` says what to do, where that is known.
    """

    exit_code = 3

    def __init__(
        self,
        call: str,
        error: str,
        explanation: str,
        *,
        op: str | None = None,
        span: Span = NOWHERE,
        hint: str | None = None,
    ) -> None:
        self.call, self.error, self.explanation = call, error, explanation
        self.op, self.span, self.hint = op, span, hint
        at = f"{span}: " if span != NOWHERE else ""
        for_op = f" (op '{op}')" if op else ""
        advice = f"\n  hint: {hint}" if hint else ""
        super().__init__(f"{at}error[cuda]: {call}: {error}: {explanation}{for_op}{advice}")

    def __reduce__(self) -> tuple[Callable[..., CudaError], tuple[Any, ...]]:
        made = partial(CudaError, op=self.op, span=self.span, hint=self.hint)
        return made, (self.call, self.error, self.explanation)


def no_memory(
    call: str,
    what: str,
    *,
    op: str | None = None,
    span: Span = NOWHERE,
    hint: str | None = None,
) -> CudaError:
    """The machine lacks the host memory for something."""
    hint = hint or "smaller shapes need less: a preset of the spec, or other values of its params"
    return CudaError(call, "OUT_OF_MEMORY", what, op=op, span=span, hint=hint)


def error(
    code: str,
    message: str,
    span: Span = NOWHERE,
    *,
    notes: Iterable[Note] = (),
    hint: str | None = None,
) -> SpecError:
    """A ``SpecError`` of one diagnostic, to be raised."""
    return SpecError([Diagnostic(code, message, span, tuple(notes), hint)])


@contextmanager
def noted(note: Note) -> Iterator[None]:
    """Add a note to every mistake that is raised inside: where what is being read was used."""
    try:
        yield
    except SpecError as problem:
        found = [replace(each, notes=(*each.notes, note)) for each in problem.diagnostics]
        raise SpecError(found) from None


def render(
    diagnostic: Diagnostic,
    sources: Mapping[str, str] | None = None,
    *,
    weight: Literal["error", "warning"] = "error",
) -> str:
    """The message as a person reads it, with the line and a caret below what is meant."""
    head = f"{weight}[{diagnostic.code}]: {diagnostic.message}"
    lines = [f"{diagnostic.span}: {head}" if diagnostic.span != NOWHERE else head]
    lines += quote(diagnostic.span, sources)
    for note in diagnostic.notes:
        at = f"{note.span}: " if note.span != NOWHERE else "  "
        lines.append(f"{at}note: {note.message}")
        lines += quote(note.span, sources)
    if diagnostic.hint:
        lines.append(f"  hint: {diagnostic.hint}")
    return "\n".join(lines)


def printable(text: str) -> str:
    """The text with what a terminal would obey written out: controls, and turns of direction.

    >>> print(printable("red \\x1b[31m and \\u202e"))
    red \\x1b[31m and \\u202e
    """
    return UNPRINTABLE.sub(lambda each: ascii(each[0])[1:-1], text)


def quote(span: Span, sources: Mapping[str, str] | None) -> list[str]:
    text = source_text(span.file, sources) if span != NOWHERE else None
    lines = text.splitlines() if text is not None else []
    if not 1 <= span.line <= len(lines):
        return []
    line = lines[span.line - 1]
    number = f"{span.line:>5} | "
    width = max(1, min(span.length, len(line) - span.column + 1))
    # Tabs stay tabs in front of the caret, so that it stands below the character in any terminal.
    pad = "".join("\t" if c == "\t" else " " for c in line[: span.column - 1])
    return [number + line, " " * 5 + " | " + pad + "^" * width]


def source_text(file: str, sources: Mapping[str, str] | None) -> str | None:
    if sources and file in sources:
        return sources[file]
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
