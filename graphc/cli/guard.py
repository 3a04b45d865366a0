"""From whatever a command raises to one message and an exit code.

0 ok, 1 the spec is wrong (or bits differ), 2 usage, 3 CUDA or the machine, 70 a bug of ours, 130
interrupted. Messages go to stderr; with ``--json`` the error is also one object on stdout.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

import typer

from graphc.cli.app import app
from graphc.text.diagnostics import (
    NOWHERE,
    CompilerBug,
    CudaError,
    Diagnostic,
    GraphcError,
    Note,
    SpecError,
    UsageError,
    no_memory,
    printable,
    render,
)

OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)
OK, USAGE, BUG, INTERRUPTED = 0, 2, 70, 130

# typer carries its own click in new releases and uses the installed one in old ones; either way
# this is the root of all its complaints about a command line.
CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]


def guarded(arguments: Sequence[str]) -> int:
    """Run the command; whatever happens, end with a code and at most one message."""
    try:
        return ended(arguments, "--json" in arguments)
    except OSError as problem:  # of stdout: ``ended`` deals with the others
        silence(sys.stdout)
        if isinstance(problem, BrokenPipeError):  # the reader has gone, and knows it
            return OK
        what = f"cannot write to stdout: {problem.strerror}"
        return report([Diagnostic("cannot-write", what)], SpecError.exit_code, is_json=False)


def ended(arguments: Sequence[str], is_json: bool) -> int:
    """The code that the command ends with; an ``OSError`` if stdout takes no more."""
    try:
        code = app(list(arguments), prog_name="graphc", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer makes an exit of it by itself
            raise KeyboardInterrupt
        return code if isinstance(code, int) else OK
    except (KeyboardInterrupt, typer.Abort):
        return report([Diagnostic("interrupted", "stopped by the user")], INTERRUPTED, is_json)
    except CommandLineError as problem:
        return report_usage(problem, is_json)
    except GraphcError as problem:
        return report_known(problem, is_json)
    except MemoryError as problem:
        return report_known(no_memory("allocate", str(problem) or "no bytes are left"), is_json)
    except Exception as problem:
        if isinstance(problem, OSError) and is_of_output(problem):  # see guarded
            raise
        what = f"{type(problem).__name__}: {problem}"
        advice = "this is a fault in graphc, not in the spec: please report it with the spec"
        found = Diagnostic("bug", what, notes=(Note(advice), Note(written(problem))))
        return report([found], BUG, is_json)


def is_of_output(problem: OSError) -> bool:
    """Whether it is the fault of stdout: faults of files are named where they are written."""
    is_known = isinstance(problem, BrokenPipeError) or problem.errno in OF_OUTPUT
    return is_known and problem.filename is None


def silence(stream: TextIO) -> None:
    """Let nothing more come of a stream: python would complain again when it flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report_usage(problem: Exception, is_json: bool) -> int:
    """The complaint and where help is; without a command the message is the help."""
    context = getattr(problem, "ctx", None)
    command = context.command_path if context is not None else "graphc"
    message = str(getattr(problem, "format_message", problem.__str__)())
    if message.lstrip().startswith("Usage:"):
        tell(sys.stderr, message)
        return USAGE
    return report([Diagnostic("usage", message, hint=f"see '{command} --help'")], USAGE, is_json)


def report_known(problem: GraphcError, is_json: bool) -> int:
    code = problem.exit_code
    match problem:
        case SpecError():
            return report(problem.diagnostics, code, is_json)
        case CudaError():
            facts = {"call": problem.call, "error": problem.error, "op": problem.op}
            found = Diagnostic("cuda", problem.explanation, problem.span, hint=problem.hint)
            return report([found], code, is_json, text=str(problem), facts=facts)
        case CompilerBug():
            where = Note(written(problem))
            found = Diagnostic("compiler-bug", str(problem).partition(": ")[2], notes=(where,))
            return report([found], code, is_json, facts={"pass": problem.pass_name})
        case UsageError():
            return report([Diagnostic("usage", str(problem))], code, is_json)
        case _:
            return report([Diagnostic("error", str(problem))], code, is_json)


def report(
    diagnostics: Sequence[Diagnostic],
    code: int,
    is_json: bool,
    *,
    text: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Say it on stderr, and as one JSON object on stdout if asked for: the first, and all."""
    message = "\n\n".join(render(each) for each in diagnostics) if text is None else text
    tell(sys.stderr, coloured(printable(message)))
    if is_json:
        found = [diagnostic_json(each) for each in diagnostics]
        error = {**found[0], "exit_code": code, **(facts or {}), "diagnostics": found}
        tell(sys.stdout, json.dumps({"error": error}, indent=1))
    return code


def tell(stream: TextIO, text: str) -> None:
    """Print the end of it all: what cannot be said changes no code."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        silence(stream)


def diagnostic_json(diagnostic: Diagnostic) -> dict[str, Any]:
    return {
        "code": diagnostic.code,
        **place_json(Note(diagnostic.message, diagnostic.span)),
        "hint": diagnostic.hint,
        "notes": [place_json(note) for note in diagnostic.notes],
    }


def place_json(note: Note) -> dict[str, Any]:
    span = None if note.span == NOWHERE else note.span
    return {
        "message": note.message,
        "file": span.file if span else None,
        "line": span.line if span else None,
        "column": span.column if span else None,
    }


def coloured(message: str) -> str:
    """The words ``error[...]`` red, ``note:`` and ``hint:`` blue, on a terminal that wants it."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return message
    message = re.sub(r"error\[[\w-]+\]", "\x1b[1;31m\\g<0>\x1b[0m", message)
    message = re.sub(r"(?m)\b(note|hint):", "\x1b[1;34m\\g<0>\x1b[0m", message)
    return re.sub(r"(?m)(\| *)(\^+)$", "\\1\x1b[1;31m\\2\x1b[0m", message)


def written(problem: Exception) -> str:
    """Where the traceback is: on the screen with GRAPHC_TRACEBACK=1, else in a file."""
    text = "".join(traceback.format_exception(problem))
    if os.environ.get("GRAPHC_TRACEBACK"):
        return f"the traceback:\n{text.rstrip()}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="graphc-traceback-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:
        return "GRAPHC_TRACEBACK=1 shows the traceback"
    return f"the traceback was written to {file.name} (GRAPHC_TRACEBACK=1 shows it)"
