"""The meaning of a plan in numpy: every op by its kernel's reference, in program order.

With a seed it runs some other order that the schedule allows, as streams (or a graph with only the
true edges) might; any such order must leave the same bytes. Buffers lie as the plan's memory says,
so that two that share bytes wrongly show it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphc.backends.binding import (
    OneOfAKind,
    OpTime,
    bindable,
    buffer_named,
    check_apart,
    check_array,
    check_count,
    check_entry,
    check_rounds,
    given_arrays,
    is_closed_error,
    is_poisoned,
    stream_handle,
    streams_of_units,
    written_buffers,
)
from graphc.backends.extern import call_function, load_references
from graphc.backends.hostmemory import check_host_memory
from graphc.backends.interleaving import Step, interleaving
from graphc.backends.outside import calling, notes_of, told
from graphc.backends.recording import Recording, Replay, Span, Way
from graphc.backends.scatters import Scatters
from graphc.backends.status import raise_all, statuses
from graphc.dtypes import dtype
from graphc.gpu.cupti import Recorder
from graphc.ir import (
    POISON,
    Access,
    Allocation,
    Await,
    Begin,
    Buffer,
    Copy,
    Extern,
    Fill,
    Join,
    Kernel,
    Op,
    Opaque,
    Role,
    Schedule,
    Signal,
    Transfer,
)
from graphc.kernels.beside import home, module_named
from graphc.machine import place_devices
from graphc.plan import KernelImage, Plan, Variant
from graphc.text.diagnostics import CompilerBug, UsageError, error, no_memory
from graphc.text.suggest import did_you_mean

Array = NDArray[Any]
Argument = Array | tuple[Array | None, ...] | None
PIECE_NAMES = ("lo", "hi", "piece", "count")


class ReferenceGraph(OneOfAKind):
    """A plan that runs on the host; the same surface as the CUDA graph."""

    def __init__(
        self,
        plan: Plan,
        *,
        devices: Mapping[str, int] | Sequence[int] | None = None,
        variant: Variant | None = None,
    ) -> None:
        self.plan = plan
        self.variant = variant or plan.variants[0]
        self._schedules = self.variant.schedules
        self.program = self.variant.schedule.program
        self.placed = place_devices(self.program.devices, None, devices)
        self._functions = self._references()
        programs = [each.program for each in self._schedules.values()]
        every = {name: each for one in reversed(programs) for name, each in one.buffers.items()}
        self._surface = replace(self.program, buffers=every)  # what can be looked at
        self._written = frozenset(name for each in programs for name in written_buffers(each))
        self._allocations = allocated(
            each for schedule in self._schedules.values() for each in schedule.memory.allocations
        )
        self._is_closed = False
        self._launched: dict[str, None] = {}  # entries, since the last synchronize
        # Entry -> its buffers: of those with a role all entries have the same arrays.
        self._arrays: dict[str, dict[str, Array | None]] = {}
        for entry, schedule in self._schedules.items():
            self._arrays[entry] = {
                name: None if buffer.is_optional else self._view(buffer, schedule)
                for name, buffer in schedule.program.buffers.items()
            }
        for buffer in bindable(self.program):
            array = self._arrays[self.program.entry][buffer.name]
            if array is not None and buffer.role in (Role.STATE, Role.STATUS):
                array.reshape(-1).view(np.uint8)[...] = 0

    @property
    def routes(self) -> Mapping[str, str]:
        """Transfer -> the route that was taken: on the host, always those of the first variant."""
        return self.variant.routes

    @property
    def entries(self) -> tuple[str, ...]:
        """What can be launched, by name; the first is what a launch takes that names none."""
        return tuple(self._schedules)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided about this machine that a user may want to know: nothing."""
        return ()

    def _references(self) -> dict[str, Callable[..., None]]:
        """Step -> its meaning, for the ops of all entries."""
        found: dict[str, Callable[..., None]] = {}
        known: dict[str, Callable[..., None]] = {}  # kernels, by their images
        for program in (each.program for each in self._schedules.values()):
            found |= load_references(program)
            for op in program:
                if not isinstance(op.work, Kernel) or op.step in found:
                    continue
                key = self.variant.images[op.step]
                if key not in known:
                    known[key] = kernel_reference(self.plan.images[key], op.work, op)
                found[op.step] = known[key]
        return found

    def _view(self, buffer: Buffer, schedule: Schedule) -> Array:
        slot = schedule.memory.slots[buffer.name]
        raw = self._allocations[slot.allocation][slot.offset : slot.offset + buffer.nbytes]
        return as_buffer(raw, buffer)

    def bind(self, arrays: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Use the caller's numpy arrays in place of the plan's own memory; nothing is copied.

        Nothing is bound if one of them does not fit.
        """
        self._check_open()
        pairs = [
            (buffer, check_array(buffer, value, is_written=buffer.name in self._written))
            for buffer, value in given_arrays(self.program, arrays, named)
        ]
        own = self._arrays[self.program.entry]
        arrays_of = {**own, **{buffer.name: array for buffer, array in pairs}}
        places = {
            buffer.name: (array.ctypes.data, array.nbytes)
            for buffer in bindable(self.program)
            if (array := arrays_of[buffer.name]) is not None
        }
        check_apart(places, self._written)
        for buffer, array in pairs:
            for entry in self._schedules:
                self._arrays[entry][buffer.name] = array
                self._lay_over(buffer, array, entry)

    def _lay_over(self, base: Buffer, array: Array, entry: str) -> None:
        """What lies over a buffer goes where the buffer goes."""
        raw = array.reshape(-1).view(np.uint8)
        for name, buffer in self._schedules[entry].program.buffers.items():
            if buffer.overlay is not None and buffer.overlay[0] == base.name:
                start = buffer.overlay[1]
                view = as_buffer(raw[start : start + buffer.nbytes], buffer)
                self._arrays[entry][name] = view
                self._lay_over(buffer, view, entry)

    def __getitem__(self, name: str) -> Array:
        """The array that holds a buffer, as it is now."""
        self._check_open()
        key = buffer_named(self._surface, name).name
        array = next(arrays[key] for arrays in self._arrays.values() if key in arrays)
        if array is None:
            raise UsageError(f"'{name}' is optional and nothing is bound to it")
        return array

    def launch(
        self,
        stream: object = None,
        count: int | None = None,
        entry: str | None = None,
        *,
        streams: Mapping[str, object] | None = None,
        seed: int | None = None,
    ) -> None:
        """Run an entry (the first if None is named) once with ``count`` rows in use.

        A seed picks another order that is allowed, and has it watched that the pieces and ranks of
        an op scatter apart. Streams are looked at and have no effect: there are none on the host.
        """
        self._check_open()
        schedule = self._schedules[check_entry(entry, self._schedules)]
        of_units = streams_of_units(schedule, stream, streams) or {}
        for each in (stream, *of_units.values()):
            if each is not None:
                stream_handle(each)
        rows = check_count(schedule.program, count)
        self._launched[schedule.entry] = None
        arrays = self._arrays[schedule.entry]
        if seed is None:
            for op in schedule.program:
                self._run(op, rows, arrays)
            return
        scatters = Scatters(arrays)
        for op in (each.op for each in interleaving((schedule,), seed) if each.op is not None):
            scatters.watch(op, partial(self._run, op, rows, arrays))

    def interleave(
        self,
        entries: Sequence[str],
        count: int | None = None,
        *,
        seed: int,
        caller: Callable[[Step], None] | None = None,
    ) -> None:
        """Run launches of these entries side by side, as far as their units may run ahead.

        The caller is told of each unit's beginning and end of each launch.
        """
        self._check_open()
        launches = [self._schedules[check_entry(entry, self._schedules)] for entry in entries]
        rows = check_count(self.program, count)
        self._launched |= dict.fromkeys(entries)
        for step in interleaving(launches, seed):
            if step.op is not None:
                self._run(step.op, rows, self._arrays[entries[step.launch]])
            elif caller is not None:
                caller(step)

    def poison(self) -> None:
        """Overwrite all scratch, so that a read of stale bytes shows."""
        self._check_open()
        for entry, schedule in self._schedules.items():
            for name, buffer in schedule.program.buffers.items():
                array = self._arrays[entry][name]
                if array is not None and is_poisoned(schedule.program, buffer):
                    array.reshape(-1).view(np.uint8)[...] = POISON

    def upload(self) -> None:
        """Nothing to bring anywhere: a launch costs the same from the first on."""
        self._check_open()

    def reset(self) -> None:
        """Nothing to begin anew: on the host no unit waits for another."""
        self._check_open()

    def synchronize(self) -> None:
        """Raise what a kernel has left in a status buffer; a launch has run when it returns."""
        self._check_open()
        launched, self._launched = self._launched, {}
        found = []
        for entry in launched:
            for each in statuses(self.plan, self.variant, self._schedules[entry]):
                array = self._arrays[entry][each.buffer.name]
                words = [] if array is None else array.reshape(-1).tolist()
                if words and words[0] and array is not None:
                    array[...] = 0
                    found.append(each.fault(*words))
        raise_all(found)

    def record(
        self,
        rounds: int = 20,
        count: int | None = None,
        *,
        way: Way | None = None,
        recorder: Recorder | None = None,
    ) -> Recording:
        """When each op's reference ran, by the host's clock: it says nothing about kernels."""
        self._check_open()
        if way not in (None, Way.WALL) or recorder is not None:
            raise self._only_on_gpus(f"to trace by {way or Way.CUPTI} needs GPUs")
        rows, rounds = check_count(self.program, count), check_rounds(rounds)
        self.launch(count=rows)
        replays = tuple(self._timed_replay(rows) for _ in range(rounds))
        host = "the clock of the host, on which one op runs after the other"
        return Recording(Way.WALL, replays, dict.fromkeys(self.program.devices, host))

    def _timed_replay(self, rows: int | None) -> Replay:
        begin = perf_counter()
        spans = {}
        for op in self.program:
            start = perf_counter()
            self._run(op, rows, self._arrays[self.program.entry])
            spans[op.name] = Span((start - begin) * 1e6, (perf_counter() - begin) * 1e6)
        return Replay(spans)

    def read_back(self) -> Any:
        raise self._only_on_gpus("read_back compares a CUDA graph with the plan")

    def time_ops(self, rounds: int = 20, count: int | None = None) -> list[OpTime]:
        raise self._only_on_gpus("time_ops measures ops on GPUs")

    def time_replays(self, rounds: int = 20, count: int | None = None) -> list[float]:
        raise self._only_on_gpus("time_replays measures replays on GPUs")

    def _only_on_gpus(self, what: str) -> UsageError:
        self._check_open()
        return UsageError(f"{what}; this is the reference backend, which runs on the host")

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise is_closed_error(self.plan.name)

    def close(self) -> None:
        """Let go of all arrays, bound ones, too."""
        self._is_closed = True
        self._arrays.clear()
        self._allocations.clear()

    def _run(self, op: Op, count: int | None, arrays: Mapping[str, Array | None]) -> None:
        lo, hi = op.piece.bounds(op.axis, count)
        match op.work:
            case Kernel():
                self._run_kernel(op, op.work, lo, hi, count, arrays)
            case Copy():
                source, target = argument(op, "source", arrays), argument(op, "target", arrays)
                assert source is not None
                assert target is not None
                rows = by_rows(source)[rows_in(op["source"], lo, hi)]
                by_rows(target)[rows_in(op["target"], lo, hi)] = rows
            case Fill():
                filled = argument(op, "target", arrays)
                assert filled is not None
                by_rows(filled)[lo:hi] = op.work.value
            case Extern():
                given = {each.argument: argument(op, each.argument, arrays) for each in op.accesses}
                capacity = self.program.capacity
                function, name = self._functions[op.step], op.work.reference
                with calling(f"reference '{name}'", name, op):
                    call_function(function, op, given, capacity=capacity, count=count)
            case Join() | Begin() | Signal() | Await():
                pass
            case Opaque() | Transfer():
                raise CompilerBug("reference", f"op '{op.name}' has nothing to run")

    def _run_kernel(
        self,
        op: Op,
        kernel: Kernel,
        lo: int,
        hi: int,
        count: int | None,
        arrays: Mapping[str, Array | None],
    ) -> None:
        image = self.plan.images[self.variant.images[op.step]]
        given = arguments(op, image, arrays)
        values = {
            **kernel.symbols,
            **kernel.options,
            **kernel.scalars,
            **given,
            "lo": lo,
            "hi": hi,
            "piece": op.piece.index,
            "count": count,
        }
        function = self._functions[op.step]
        wanted = parameters_of(function)
        names = [each.name for each in wanted if each.name in values or each.default is each.empty]
        what = f"reference '{image.reference}' of kernel '{image.template}'"
        with calling(what, image.reference or "", op):
            function(**{name: values[name] for name in names})


def arguments(
    op: Op, image: KernelImage, arrays: Mapping[str, Array | None]
) -> dict[str, Argument]:
    """What a kernel's reference is given for its pointers: a tuple for those over all ranks."""
    given: dict[str, list[Array | None]] = {}
    for access in op.accesses:
        given.setdefault(access.argument, []).append(array_of(access, arrays))
    return {
        name: None if name not in given else tuple(found) if name in image.tables else found[0]
        for name in image.pointers
        for found in [given.get(name, [])]
    }


def argument(op: Op, name: str, arrays: Mapping[str, Array | None]) -> Array | None:
    """The array of an argument; None if nothing is given for it."""
    for access in op.accesses:
        if access.argument == name:
            return array_of(access, arrays)
    return None


def array_of(access: Access, arrays: Mapping[str, Array | None]) -> Array | None:
    """The whole buffer; of a ring, the rows of the slot."""
    array, nbytes = arrays[access.region.buffer], access.region.nbytes
    if not access.is_ring or array is None or not nbytes:
        return array
    first = access.region.start // nbytes * (len(array) // access.rows.factor)
    return array[first : first + len(array) // access.rows.factor]


def rows_in(access: Access, lo: int, hi: int) -> slice:
    """Where rows ``[lo, hi)`` are in an argument: a slot of a ring begins at row ``lo``."""
    return slice(0, hi - lo) if access.is_ring else slice(lo, hi)


def by_rows(array: Array) -> Array:
    """The array; a number without dimensions as its only row."""
    return array if array.ndim else array.reshape(1)


def as_buffer(raw: NDArray[np.uint8], buffer: Buffer) -> Array:
    return raw.view(dtype(buffer.dtype).numpy).reshape(buffer.shape)


def kernel_reference(image: KernelImage, kernel: Kernel, op: Op) -> Callable[..., None]:
    """The kernel's meaning, found to ask for nothing that is not given."""
    if image.reference is None:
        raise error(
            "no-reference",
            f"kernel '{image.template}' has no reference, so it cannot run on the host",
            hint="add 'reference: module:function' to its contract, or use --backend cuda",
        )
    whose = f", the reference of kernel '{image.template}' in op '{op.step}'"
    function = resolve(image.reference, home(image), of=whose)
    scalars = [name for name, _ in image.scalars]
    given = [*image.pointers, *scalars, *kernel.symbols, *kernel.options, *PIECE_NAMES]
    for each in parameters_of(function):
        if each.name not in given and each.default is each.empty:
            raise error(
                "no-reference",
                f"reference '{image.reference}' of kernel '{image.template}' asks for "
                f"'{each.name}', which is not given",
                hint=did_you_mean(each.name, given) or f"there are {', '.join(given)}",
            )
    return function


def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """What a reference takes by name; ``**rest`` takes nothing that it has not named."""
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:  # a function that does not show its parameters
        return ()
    return tuple(each for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))


def allocated(allocations: Iterable[Allocation]) -> dict[str, NDArray[np.uint8]]:
    """The plan's memory, asked for only if the machine has so much.

    Allocations of one name are one, as large as the largest of them.
    """
    by_name: dict[str, Allocation] = {}
    for each in allocations:
        if each.name not in by_name or by_name[each.name].nbytes < each.nbytes:
            by_name[each.name] = each
    each_of = tuple(by_name.values())
    check_host_memory(sum(each.nbytes for each in each_of), largest(each_of))
    found = {}
    for each in each_of:
        try:
            found[each.name] = aligned_bytes(each.nbytes)
        except MemoryError:
            what = f"cannot allocate the {each.nbytes} bytes of '{each.name}'"
            raise no_memory("allocate", what) from None
    return found


def largest(allocations: Sequence[Allocation]) -> str:
    """What a message says of the largest one."""
    if not allocations:
        return ""
    found = max(allocations, key=lambda each: each.nbytes)
    return f"its largest allocation, '{found.name}', has {found.nbytes} bytes"


def aligned_bytes(nbytes: int, alignment: int = 256) -> NDArray[np.uint8]:
    raw = np.full(nbytes + alignment, POISON, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def resolve(name: str, folder: Path | None = None, *, of: str = "") -> Callable[..., Any]:
    """The function that ``module:name`` names; ``folder`` is that of the kernel's template.

    ``of`` says in messages whose it is.
    """
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(module_named(module, folder), function)
    except Exception as problem:  # the module is the author's: it may raise anything
        is_missing = isinstance(problem, ImportError | AttributeError)
        raise error(
            "no-reference",
            f"cannot load '{name}'{of}: {problem if is_missing else told(problem)}",
            notes=[] if is_missing else notes_of(problem),
            hint="write it as 'module:function', beside the template or importable",
        ) from None
    if not callable(found):
        raise error("no-reference", f"'{name}'{of} is no function")
    return found
