"""What memory the host has left, asked before it is filled: the system ends who takes too much."""

from __future__ import annotations

from pathlib import Path

from graphc.text.diagnostics import no_memory

MEMINFO = Path("/proc/meminfo")
# Of the group of processes that we are in, in both versions of groups: its limit and its use.
GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
FILES = ("inactive_file", "active_file")  # counted as used, and given up when it is asked for


def available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    system = numbers_in(MEMINFO)
    found = [system["MemAvailable:"] * 1024] if "MemAvailable:" in system else []
    for folder, limit, used in GROUPS:
        most, now = number_in(folder / limit), number_in(folder / used)
        if most is not None and now is not None:
            files = numbers_in(folder / "memory.stat")
            found.append(max(0, most - now + sum(files.get(each, 0) for each in FILES)))
    return min(found, default=None)


def numbers_in(file: Path) -> dict[str, int]:
    """The numbers of a file with one name and number a line; none if it is not there."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def number_in(file: Path) -> int | None:
    """The number that a file holds; None if it holds none ('max') or is not there."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def check_host_memory(nbytes: int, of_what: str = "", hint: str | None = None) -> None:
    """Refuse to begin what this machine has not the memory for."""
    free = available_memory()
    if free is not None and nbytes > free:
        more = f"; {of_what}" if of_what else ""
        what = f"it takes {nbytes} bytes of host memory, and {free} are available{more}"
        raise no_memory("allocate", what, hint=hint)
