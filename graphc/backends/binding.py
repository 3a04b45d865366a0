"""What every backend checks when a caller binds arrays or launches with a count."""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from graphc.dtypes import dtype
from graphc.ir import Buffer, LaunchContract, Program, Role, Schedule
from graphc.text.diagnostics import UsageError
from graphc.text.suggest import did_you_mean

ALIGNMENT = 16  # bytes: kernels move 16 at a time


@dataclass(frozen=True, slots=True)
class OpTime:
    """Medians over some replays of one op on its stream.

    ``waited_us`` is how long its stream had nothing to do before it: since its op before, or since
    the round began; None for the first op of a stream on another GPU, whose clock is its own.
    """

    op: str
    stream: str
    us: float
    waited_us: float | None


class OneOfAKind(ABC):
    """What has memory, streams and views of its own, which a copy would share or lose, and gives
    them back in the end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} cannot be copied or pickled: instantiate its plan again "
            "(graph.plan.instantiate()), or save the plan"
        )


def is_closed_error(name: str) -> UsageError:
    return UsageError(f"the graph of '{name}' is closed: instantiate the plan again")


def unknown_buffer(name: object, buffers: Iterable[str]) -> UsageError:
    hint = None
    if isinstance(name, str):
        each = [key for key in buffers if key.endswith(f"/{name}")]
        several = f"there is one for each of {len(each)}: '{each[0]}' ..." if each else None
        hint = several or did_you_mean(name, buffers)
    return UsageError(f"no buffer is named '{name}'" + (f": {hint}" if hint else ""))


def buffer_named(program: Program, name: object) -> Buffer:
    if not isinstance(name, str) or name not in program.buffers:
        raise unknown_buffer(name, program.buffers)
    return program.buffers[name]


def given_arrays(
    program: Program, arrays: Mapping[str, Any] | None, named: Mapping[str, Any]
) -> list[tuple[Buffer, Any]]:
    """What ``bind`` was called with, by buffer."""
    if arrays is not None and not isinstance(arrays, Mapping):
        raise UsageError(
            f"bind takes arrays by the names of their buffers (bind(x=array) or "
            f"bind({{'x': array}})), found {type(arrays).__name__}"
        )
    once = "rank" if program.rank_devices else "iteration"
    pairs = list(named_arrays(program.buffers, {**(arrays or {}), **named}, once=once))
    for name, _ in pairs:
        overlay = program.buffers[name].overlay
        if overlay is not None:
            raise UsageError(f"'{name}' lies over '{overlay[0]}': bind an array to that one")
    return [(program.buffers[name], value) for name, value in pairs]


def checked_limit(seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise UsageError(f"wait_limit_s: expected seconds, more than none, found {seconds!r}")
    return float(seconds)


def written_buffers(program: Program) -> frozenset[str]:
    """The buffers whose bytes some op writes, also by way of a buffer that lies over them."""
    written = {region.buffer for op in program for region in op.writes}
    bases = {program.buffers[name].overlay for name in written}
    return frozenset(written | {base[0] for base in bases if base is not None})


def is_poisoned(program: Program, buffer: Buffer) -> bool:
    """Whether a buffer is scratch down to its bytes, and lies over nothing with a role."""
    while buffer.role is Role.SCRATCH and buffer.overlay is not None:
        buffer = program.buffers[buffer.overlay[0]]
    return buffer.role is Role.SCRATCH


def read_only(name: str) -> UsageError:
    return UsageError(f"'{name}': the array is read-only, but the plan writes to it; bind a copy")


def named_arrays(
    buffers: Mapping[str, Buffer], given: Mapping[str, Any], *, once: str = "iteration"
) -> Iterator[tuple[str, Any]]:
    """Buffer name and array; a list stands for the buffers of that name, of all ranks and
    iterations, in the order of their numbers."""
    for name, value in given.items():
        if name in buffers:
            if buffers[name].role is Role.SCRATCH:
                raise UsageError(
                    f"'{name}' is scratch: it has no role, so nothing can be bound to it"
                )
            yield name, value
            continue
        each = [key for key in buffers if key.rsplit("/", 1)[-1] == name and "/" in key]
        each = sorted((key for key in each if buffers[key].role is not Role.SCRATCH), key=by_number)
        if not each:
            raise unknown_buffer(name, buffers)
        if not isinstance(value, Sequence) or len(value) != len(each):
            found = f"{len(value)}" if isinstance(value, Sequence) else "one array"
            raise UsageError(
                f"'{name}' exists once {article(once)}: expected a list of {len(each)} arrays, "
                f"found {found}"
            )
        yield from zip(each, value, strict=True)


def by_number(name: str) -> list[tuple[int, str]]:
    """So that rank 10 stands behind rank 2.

    >>> sorted(["rank.10/x", "rank.2/x"], key=by_number)
    ['rank.2/x', 'rank.10/x']
    """
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def bindable(program: Program) -> Iterator[Buffer]:
    """The buffers to which arrays can be bound."""
    for buffer in program.buffers.values():
        if buffer.role is not Role.SCRATCH and buffer.overlay is None:
            yield buffer


def check_apart(places: Mapping[str, tuple[int, int]], written: Iterable[str]) -> None:
    """Refuse arrays that share bytes, if the plan writes one of them: the proof takes buffers to
    lie apart. ``places`` are addresses and bytes, by buffer."""
    is_written = frozenset(written)
    all_until, written_until = (0, ""), (0, "")  # the furthest ends so far
    for start, nbytes, name in sorted((*place, name) for name, place in places.items()):
        until, other = all_until if name in is_written else written_until
        if nbytes and start < until:
            raise UsageError(
                f"'{name}' and '{other}' share memory, and the plan writes to "
                f"'{name if name in is_written else other}': bind arrays that lie apart"
            )
        all_until = max(all_until, (start + nbytes, name))
        if name in is_written:
            written_until = max(written_until, (start + nbytes, name))


def check_array(buffer: Buffer, value: Any, *, is_written: bool) -> NDArray[Any]:
    """The caller's array, if it can stand for the buffer as it is: no copy is ever made."""
    if not isinstance(value, np.ndarray):
        raise UsageError(
            f"'{buffer.name}': expected a numpy array, found {type(value).__name__} "
            "(the reference backend runs on the host)"
        )
    wanted = dtype(buffer.dtype)
    if value.dtype != wanted.numpy:
        raise UsageError(
            f"'{buffer.name}': expected dtype {buffer.dtype} ({wanted.numpy}), found {value.dtype}"
        )
    if value.shape != buffer.shape:
        raise UsageError(f"'{buffer.name}': expected shape {buffer.shape}, found {value.shape}")
    if not value.flags.c_contiguous:
        raise UsageError(
            f"'{buffer.name}': expected rows next to each other, found strides {value.strides}; "
            "pass numpy.ascontiguousarray(array)"
        )
    if value.nbytes and value.ctypes.data % ALIGNMENT:
        raise UsageError(
            f"'{buffer.name}': expected an address that {ALIGNMENT} divides, found "
            f"{value.ctypes.data:#x}"
        )
    if is_written and not value.flags.writeable:
        raise read_only(buffer.name)
    return value


def as_index(value: object) -> int | None:
    """A whole number of any library as an int; None if it is something else, such as a bool.

    >>> as_index(np.int64(3)), as_index(True), as_index(1.0)
    (3, None, None)
    """
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_rounds(rounds: int) -> int:
    number = as_index(rounds)
    if number is None or number < 1:
        raise UsageError(f"rounds: expected a whole number from 1 on, found {rounds!r}")
    return number


def stream_handle(stream: Any) -> int:
    """The handle of a stream of any library."""
    handle = as_index(stream)
    if handle is not None and handle >= 0:
        return handle
    for protocol in ("__cuda_stream__", "cuda_stream", "ptr"):
        found = getattr(stream, protocol, None)
        if found is not None:
            value = found() if callable(found) else found
            return int(value[1]) if isinstance(value, tuple) else int(value)
    raise UsageError(
        f"a {type(stream).__name__} is no stream: expected an object with __cuda_stream__ "
        "(torch, cupy, cuda.core), a handle, or None"
    )


def streams_of_units(
    schedule: Schedule, stream: object, streams: object
) -> dict[str, object] | None:
    """Unit -> the stream that the caller gave for it; None where units have streams of their own.

    Where a launch is one call on one stream, there are none for units.
    """
    names = [unit.name for unit in schedule.units]
    if schedule.launch is not LaunchContract.FREE or len(names) < 2:
        if streams is None:
            return None
        raise UsageError(
            "streams is for plans of several units whose launch is free: pass one stream as the "
            "first argument"
        )
    if stream is not None:
        raise UsageError(
            "the launch of this plan is free: each unit has a stream of its own; pass streams={"
            + ", ".join(f"'{name}': ..." for name in names)
            + "}, or none"
        )
    if streams is None:
        return None
    if not isinstance(streams, Mapping):
        raise UsageError(f"streams: expected the stream of each unit by name, found {streams!r}")
    for name in (*streams, *names):
        if name not in names:
            hint = did_you_mean(str(name), names) or f"there are {', '.join(names)}"
            raise UsageError(f"streams: no unit is named '{name}': {hint}")
        if name not in streams:
            raise UsageError(f"streams: no stream is given for unit '{name}'")
    return {name: streams[name] for name in names}


def check_entry(entry: object, entries: Iterable[str]) -> str:
    """The entry that a launch names; the first where it names none."""
    known = tuple(entries)
    if entry is None:
        return known[0]
    if not isinstance(entry, str) or entry not in known:
        hint = did_you_mean(entry, known) if isinstance(entry, str) else None
        hint = hint or f"there are {', '.join(known)}"
        raise UsageError(f"the plan has no entry {entry!r}: {hint}")
    return entry


def check_count(program: Program, count: int | None) -> int | None:
    """The rows in use: the capacity where none are named."""
    if program.capacity is None:
        if count is not None:
            raise UsageError(
                f"'{program.name}' has no count: mark one of its params with 'count: true'"
            )
        return None
    if count is None:
        return program.capacity
    rows = as_index(count)
    if rows is None:
        raise UsageError(f"count: expected a whole number, found {count!r}")
    if not 0 <= rows <= program.capacity:
        raise UsageError(
            f"count {rows} is outside 0 to {program.capacity}, the capacity "
            f"('{program.count_name}') for which the plan was compiled"
        )
    return rows
