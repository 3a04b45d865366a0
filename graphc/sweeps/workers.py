"""The workers of a sweep, as it sees them: given candidates, asked for outcomes, replaced at need.

A worker is started as a new Python, not forked: a GPU cannot be used across a fork, and no program
of the caller's runs again in it. One that ends, or takes longer than the limit, is replaced, and
its candidate has failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Protocol

from graphc.sweeps.job import Evaluator, Job, evaluator_of
from graphc.sweeps.rows import Candidate, Outcome
from graphc.sweeps.worker import failed, judged
from graphc.text.diagnostics import CudaError, GraphcError

SETUP_S = 900.0  # for a worker to load what it needs and run the baseline
LAST_WORDS = 400  # characters of what a worker said before it ended


class Workers(Protocol):
    """Who judges candidates."""

    @property
    def count(self) -> int: ...

    @property
    def baseline(self) -> Outcome: ...

    @property
    def idle(self) -> int: ...

    def give(self, candidate: Candidate) -> None: ...

    def collect(self, seconds: float) -> list[tuple[Candidate, Outcome]]: ...

    def close(self) -> None: ...


class Here:
    """Candidates judged in this process, one at a time; a fault of one may end it."""

    count = 1

    def __init__(self, job: Job) -> None:
        self.job = job
        self.made: Evaluator | None = None
        self.given: list[Candidate] = []

    @property
    def evaluator(self) -> Evaluator:
        """Made when there is something to judge."""
        if self.made is None:
            self.made = evaluator_of(self.job)
        return self.made

    @property
    def baseline(self) -> Outcome:
        return self.evaluator.baseline

    @property
    def idle(self) -> int:
        return 1 - len(self.given)

    def give(self, candidate: Candidate) -> None:
        self.given.append(candidate)

    def collect(self, seconds: float) -> list[tuple[Candidate, Outcome]]:
        given, self.given = self.given, []
        return [(each, judged(self.evaluator, each.values)) for each in given]

    def close(self) -> None:
        if self.made is not None:
            self.made.close()


@dataclass(slots=True)
class Worker:
    """One process."""

    process: subprocess.Popen[bytes]
    connection: Connection
    words: IO[bytes]  # what it says on stderr
    deadline: float
    candidate: Candidate | None = None
    is_ready: bool = False

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.candidate is None

    def last_words(self) -> str:
        self.words.seek(0, os.SEEK_END)
        self.words.seek(max(0, self.words.tell() - LAST_WORDS))
        text = self.words.read().decode(errors="replace").strip()
        return f": {text}" if text else ""

    def end(self) -> None:
        with suppress(OSError):
            self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.words.close()


@dataclass(slots=True)
class Pool:
    """So many workers; the first outcome of a baseline is that of the sweep."""

    job: Job
    count: int
    limit_s: float
    workers: list[Worker] = field(default_factory=list)
    found: Outcome | None = None  # the baseline

    @property
    def baseline(self) -> Outcome:
        while self.found is None:
            self.fill()
            self.collect(1.0)
        return self.found

    @property
    def idle(self) -> int:
        return sum(each.is_idle for each in self.workers)

    def fill(self) -> None:
        while len(self.workers) < self.count:
            self.workers.append(started(self.job))

    def give(self, candidate: Candidate) -> None:
        worker = next(each for each in self.workers if each.is_idle)
        worker.candidate, worker.deadline = candidate, time.monotonic() + self.limit_s
        with suppress(OSError):  # one that ended meanwhile is found by ``collect``
            worker.connection.send(candidate.values)

    def collect(self, seconds: float) -> list[tuple[Candidate, Outcome]]:
        """What came within so many seconds; at once when there is something."""
        self.fill()
        now = time.monotonic()
        busy = {each.connection: each for each in self.workers if not each.is_idle}
        nearest = min((each.deadline for each in busy.values()), default=now + seconds)
        ready = wait(list(busy), max(0.0, min(seconds, nearest - now)))
        found = [self.heard(busy[each]) for each in ready]  # type: ignore[index]
        found += [
            self.ended(each, f"it took longer than {self.limit_s:g} s")
            for each in self.workers
            if not each.is_idle and time.monotonic() > each.deadline
        ]
        return [each for each in found if each is not None]

    def heard(self, worker: Worker) -> tuple[Candidate, Outcome] | None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.wait()
            return self.ended(worker, f"its worker ended ({how(worker.process.returncode)})")
        if isinstance(message, GraphcError):
            raise message
        if not worker.is_ready:
            self.found = self.found or message
            worker.is_ready = True
            return None
        assert worker.candidate is not None
        candidate, worker.candidate = worker.candidate, None
        outcome, is_sound = message
        if not is_sound:
            self.workers.remove(worker)
            worker.end()
        return candidate, outcome

    def ended(self, worker: Worker, why: str) -> tuple[Candidate, Outcome] | None:
        """Take leave of a worker; its candidate has failed, and without one the sweep has."""
        self.workers.remove(worker)
        candidate, words = worker.candidate, worker.last_words()
        worker.end()
        if candidate is None or self.found is None:
            raise CudaError(
                "sweep",
                "WORKER_ENDED",
                f"the baseline cannot be run: {why}{words}",
                hint="graphc run shows what is wrong with it",
            )
        return candidate, failed(f"{why}{words}", self.found.basis)

    def close(self) -> None:
        for each in self.workers:
            each.end()
        self.workers.clear()


def started(job: Job) -> Worker:
    ours, theirs = Pipe()
    words = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "graphc.sweeps.worker", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            env={**os.environ, "PYTHONPATH": search_path()},
            start_new_session=True,  # what the user stops is the sweep, which ends them
        )
    finally:
        theirs.close()
    with suppress(OSError):
        ours.send((sys.path, job))
    return Worker(process, ours, words, time.monotonic() + SETUP_S)


def search_path() -> str:
    """Where this process finds its modules, graphc among them."""
    return os.pathsep.join(each for each in sys.path if each)


def how(code: int) -> str:
    """
    >>> how(-11), how(3)
    ('SIGSEGV', 'exit code 3')
    """
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def workers_of(job: Job, count: int, limit_s: float) -> Workers:
    return Pool(job, count, limit_s) if count else Here(job)


def cores() -> int:
    """The processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def enough(candidates: int, most: int) -> int:
    """Workers for so many candidates: a few do not pay for the start of another."""
    return max(1, min(most, candidates // 8))
