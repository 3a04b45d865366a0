"""Faults of the author's functions, references and externs: who raised what, and on which line."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from graphc.ir import Op
from graphc.resources import PACKAGE
from graphc.text.diagnostics import NOWHERE, GraphcError, Note, Span, error, no_memory

OURS = "graphc."  # a fault of a shipped reference is ours


@contextmanager
def calling(what: str, name: str, op: Op) -> Iterator[None]:
    """Say of what the author's function raises that it is theirs, and of a lack of memory so."""
    try:
        yield
    except GraphcError:
        raise
    except MemoryError as problem:
        why = f"{what}: {problem}" if str(problem) else f"{what}: no bytes are left"
        raise no_memory("allocate", why, op=op.name, span=op.span) from None
    except Exception as problem:  # the function is the author's: it may raise anything
        if name.startswith(OURS):
            raise
        raise error(
            "function-failed",
            f"{what} failed in op '{op.name}': {told(problem)}",
            op.span,
            notes=notes_of(problem),
        ) from problem


def told(problem: BaseException) -> str:
    """
    >>> told(KeyError("x")), told(ValueError())
    ("KeyError: 'x'", 'ValueError')
    """
    what = problem.msg if isinstance(problem, SyntaxError) else str(problem)
    return f"{type(problem).__name__}: {what}" if what else type(problem).__name__


def notes_of(problem: BaseException) -> list[Note]:
    where = place_of(problem)
    return [] if where == NOWHERE else [Note("raised here", where)]


def place_of(problem: BaseException) -> Span:
    """The last line of the author's file on the way to the fault."""
    if isinstance(problem, SyntaxError) and problem.filename and problem.lineno:
        return Span(problem.filename, problem.lineno, problem.offset or 1)
    frames = [each for each in traceback.extract_tb(problem.__traceback__) if is_outside(each)]
    if not frames:
        return NOWHERE
    last = [each for each in frames if each.filename == frames[0].filename][-1]
    column, end = (last.colno or 0) + 1, (last.end_colno or 0) + 1
    length = end - column if last.end_lineno == last.lineno else 1
    return Span(last.filename, last.lineno or 0, column, max(1, length))


def is_outside(frame: traceback.FrameSummary) -> bool:
    """Whether it is neither ours nor of the machinery of imports."""
    machinery = frame.filename.startswith("<") or frame.filename == importlib.__file__
    return not machinery and not frame.filename.startswith(f"{PACKAGE}/")
