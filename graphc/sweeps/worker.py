"""A worker: a process of its own that judges one candidate after the other.

``python -m graphc.sweeps.worker N P`` speaks with process P over file number N: a job comes in
and the baseline's outcome goes out; then candidates come in and outcomes go out, each with whether
the worker goes on. It ends when its sweep does, and after a fault that its process cannot outlive.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection

from graphc.sweeps.job import Evaluator, evaluator_of
from graphc.sweeps.rows import Basis, Outcome, Status
from graphc.text.diagnostics import CompilerBug, CudaError, GraphcError, SpecError, UsageError
from graphc.text.words import Value

PR_SET_PDEATHSIG = 1
MANY = 600  # characters of a reason


def main() -> None:
    number, sweep = map(int, sys.argv[1:])
    end_with(sweep)
    connection = Connection(number)
    os.dup2(2, 1)  # what functions of the author print is no output of the sweep's
    with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        serve(connection)


def end_with(sweep: int) -> None:
    """Let a sweep that is killed take a worker along that hangs, and would keep its GPU."""
    with suppress(OSError, AttributeError):  # not Linux: it ends when it speaks again
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != sweep:  # it was killed before that
        os._exit(1)


def serve(connection: Connection) -> None:
    paths, job = connection.recv()
    sys.path[:] = paths
    try:
        evaluator = evaluator_of(job)
    except Exception as problem:
        connection.send(problem if isinstance(problem, GraphcError) else as_bug(problem))
        return
    connection.send(evaluator.baseline)
    is_sound = True
    while is_sound:
        outcome = judged(evaluator, connection.recv())
        is_sound = outcome.status is not Status.FAILED or evaluator.is_sound()
        connection.send((outcome, is_sound))
    os._exit(0)  # a GPU that is at fault may let nothing be given back


def judged(evaluator: Evaluator, values: Mapping[str, Value]) -> Outcome:
    """The outcome of a candidate, whatever it raises."""
    basis = evaluator.baseline.basis
    try:
        return evaluator.evaluate(values)
    except (SpecError, UsageError) as problem:
        return Outcome(Status.REFUSED, basis, reason_of(problem))
    except (CudaError, CompilerBug, MemoryError) as problem:
        return Outcome(Status.FAILED, basis, reason_of(problem))
    except Exception as problem:
        return Outcome(Status.FAILED, basis, f"{type(problem).__name__}: {problem}"[:MANY])


def reason_of(problem: BaseException) -> str:
    """The first mistake, on one line, without the quoted file."""
    if isinstance(problem, SpecError):
        first = problem.diagnostics[0]
        more = len(problem.diagnostics) - 1
        rest = f" (and {more} more)" if more else ""
        return f"{first.code}: {first.message} ({first.span}){rest}"[:MANY]
    return (str(problem) or type(problem).__name__)[:MANY]


def as_bug(problem: Exception) -> CompilerBug:
    return CompilerBug("sweep", f"{type(problem).__name__}: {problem}")


def failed(reason: str, basis: Basis) -> Outcome:
    return Outcome(Status.FAILED, basis, reason[:MANY])


if __name__ == "__main__":
    main()
