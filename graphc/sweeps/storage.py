"""Storages of sweeps, by Optuna: a journal file, SQLite, or a database that machines share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.sweeps.rows import KEPT
from graphc.text.diagnostics import CudaError, SpecError, UsageError, error

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

LOCAL = "sweep.journal"  # in the folder of the results
SQLITE = (".db", ".sqlite", ".sqlite3")
SYNC_S = 1.0
WAIT_S = 60  # for a database that others are writing to
RACE_S = 20.0  # for a new database whose tables others are making
RACES = ("already exists", "unique", "duplicate")  # what is said to who makes one a second time
FIRST = b'{"op_code":'  # with which every line of a journal begins


def optuna() -> Any:
    """The library, imported when a sweep begins."""
    try:
        import optuna
    except ImportError:
        raise UsageError(
            "sweeps need Optuna, which is not installed: pip install 'graphc[sweep]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_storage(where: str | Path | None) -> BaseStorage:
    """A URL (``postgresql://...``), a file (SQLite by its ending, else a journal), or memory."""
    library = optuna()
    if where is None:
        memory: BaseStorage = library.storages.InMemoryStorage()
        return memory
    with told(str(where), hint=None):
        if "://" in str(where):
            return database(str(where), str(where))
        path = Path(where)
        if path.is_dir():
            raise UsageError(f"'{path}' is a folder: name a file, or the folder with --out")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder '{path.absolute().parent}' for '{path.name}'")
        if path.suffix in SQLITE:
            return database(f"sqlite:///{path.absolute()}", str(path))
        return journal(path)


def database(url: str, name: str) -> BaseStorage:
    waits = {"connect_args": {"timeout": WAIT_S}} if url.startswith("sqlite:") else {}
    try:
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError:
        raise UsageError(
            f"cannot open '{name}': databases need SQLAlchemy, which is not installed: "
            "pip install sqlalchemy"
        ) from None
    try:
        return made_database(url, {"pool_pre_ping": True, **waits})
    except ImportError as problem:
        hint = f"install the module that the URL needs: {problem}"
        raise UsageError(f"cannot open '{name}': {hint}") from None
    except (ArgumentError, NoSuchModuleError) as problem:
        raise UsageError(f"'{name}' is no URL of a database that is known: {problem}") from None


def made_database(url: str, options: Mapping[str, Any]) -> BaseStorage:
    """The storage; of those that start on a new one at once, each makes the tables that lack."""
    storages = optuna().storages
    until = time.monotonic() + RACE_S
    while True:
        try:
            found: BaseStorage = storages.get_storage(
                storages.RDBStorage(url, engine_kwargs=dict(options))
            )
        except Exception as problem:
            if not is_race(problem) or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return found


def is_race(problem: Exception) -> bool:
    """Whether others made what was to be made, or half of it."""
    is_half_made = isinstance(problem, AssertionError)  # Optuna: tables, and no version yet
    return is_half_made or any(each in str(problem).lower() for each in RACES)


def journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    lock = FileLock(path)
    mend(path, lock)
    reader = JournalFileBackend(str(path), lock_obj=lock)  # type: ignore[arg-type]
    return JournalStorage(Journal(path, lock, reader))  # type: ignore[arg-type]


class Journal:
    """Optuna's journal file; bytes are sent to the disk once a second, not with every line.

    What was written survives its process. Only a machine that goes down loses the last second.
    """

    def __init__(self, path: Path, lock: FileLock, reader: Any) -> None:
        self.path, self.lock, self.reader = path, lock, reader
        self.synced_s = 0.0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        try:
            for line in self.reader.read_logs(log_number_from):
                if not isinstance(line, dict) or "op_code" not in line:
                    raise damaged(self.path)
                yield line
        except ValueError:  # of JSON, or a line in the middle that has no end
            raise damaged(self.path) from None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in logs)
        self.lock.acquire()
        try:
            with self.path.open("ab") as file:
                file.write(lines.encode())
                file.flush()
                if time.monotonic() - self.synced_s > SYNC_S:
                    os.fsync(file.fileno())
                    self.synced_s = time.monotonic()
        finally:
            self.lock.release()


class FileLock:
    """A lock that ends with its process, however that ends."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self.file: int | None = None

    def acquire(self) -> bool:
        import fcntl

        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


def damaged(path: Path) -> UsageError:
    return UsageError(
        f"'{path}' is damaged, and what it holds cannot be trusted: name another --storage or "
        "--out, or remove it"
    )


def mend(path: Path, lock: FileLock) -> None:
    """Drop a last line that was never finished, as a full disk leaves it; of a journal alone."""
    if not path.exists():
        return
    lock.acquire()
    try:
        with path.open("r+b") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if not (content.startswith(FIRST) or FIRST.startswith(content)):
                raise UsageError(f"'{path}' is no journal of a sweep: name another file")
            if whole < len(content):
                file.truncate(whole)
    finally:
        lock.release()


@contextmanager
def told(name: str, *, hint: str | None = KEPT) -> Iterator[None]:
    """Say of a storage that fails which it is and why, and that what was measured is kept."""
    try:
        yield
    except (SpecError, UsageError, CudaError):
        raise
    except OSError as problem:
        raise unwritable(name, problem.strerror or str(problem), hint) from None
    except Exception as problem:
        if is_of_database(problem):
            raise unwritable(name, cause_of(problem), hint) from None
        raise


def unwritable(name: str, why: str, hint: str | None) -> SpecError:
    return error("cannot-write", f"cannot use the sweep's storage '{name}': {why}", hint=hint)


def is_of_database(problem: Exception) -> bool:
    modules = {each.__module__.partition(".")[0] for each in type(problem).__mro__}
    return bool({"sqlalchemy", "sqlite3"} & modules) or "Storage" in type(problem).__name__


def cause_of(problem: BaseException) -> str:
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return str(problem).strip().splitlines()[0]
