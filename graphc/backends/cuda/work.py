"""An op and the count in use -> the driver's calls.

Kernels read the count on the device, so their calls never change with it. A copy or a fill is
cut to the rows in use; without rows it has no call at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from graphc.backends.cuda.kernels import POINTER, Kernels, kernel_call
from graphc.backends.cuda.memory import DeviceMemory, Gpu
from graphc.backends.cuda.words import Wanted, Words
from graphc.dtypes import dtype
from graphc.gpu.protocol import (
    Argument,
    Call,
    CopyCall,
    FillCall,
    KernelCall,
    MemoryOp,
    MemoryOpsCall,
)
from graphc.ir import (
    Await,
    Begin,
    Copy,
    Extern,
    Fill,
    Join,
    Kernel,
    Op,
    Opaque,
    Program,
    Schedule,
    Signal,
    Signalling,
    Transfer,
)
from graphc.kernels.signals import MOST, signal_image, width
from graphc.plan import KernelImage, Variant
from graphc.text.diagnostics import CompilerBug, UsageError, error

CallsOfCount: TypeAlias = Callable[[int | None], tuple[Call, ...]]


MOST_MEMORY_OPS = 255  # of one call


@dataclass(slots=True)
class Work:
    """The calls of a schedule's ops, with the memory as it is bound now."""

    variant: Variant
    schedule: Schedule
    memory: DeviceMemory
    kernels: Kernels
    gpus: Mapping[str, Gpu]
    words: Words | None = None  # of a divided schedule
    launches: dict[str, KernelCall] = field(default_factory=dict)
    settled: dict[str, CallsOfCount] = field(default_factory=dict)
    placeholder_counts: dict[str, int | None] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        return self.schedule.program

    def prepare(self, priorities: Mapping[str, int]) -> None:
        """Settle the launch of every kernel; load what is not loaded yet."""
        self.settled.clear()
        for op in self.program:
            priority = priorities.get(op.name, 0)
            if isinstance(op.work, Kernel):
                self.launches[op.name] = self.launch_of(op, priority)
            elif isinstance(op.work, Begin | Signal | Await):
                self.settled[op.name] = whatever_the_count(self.signalling_calls(op, priority))

    def launch_of(self, op: Op, priority: int) -> KernelCall:
        key = self.variant.images[op.step]
        image = self.kernels.images[key]
        gpu = self.gpus[op.device]
        call = kernel_call(
            op,
            image,
            gpu,
            function=self.kernels.load(key, gpu, op),
            pointers=[self.pointers(op, name, image) for name in image.pointers],
            capacity=self.program.capacity,
            priority=priority,
            guard=self.guard(op),
        )
        self.kernels.allow_shared(key, gpu, call.shared)
        self.kernels.check_cooperative(key, gpu, call, op)
        return call

    def pointers(self, op: Op, argument: str, image: KernelImage) -> Argument:
        """The address of an argument; of one over all ranks, a table by value."""
        if argument not in image.tables:
            return POINTER, self.pointer(op, argument)
        ranks = range(image.tables[argument])
        return f"{len(ranks)}Q", tuple(self.pointer(op, argument, rank) for rank in ranks)

    def pointer(self, op: Op, argument: str, peer: int | None = None) -> int:
        for access in op.accesses:
            if access.argument == argument and access.peer == peer:
                address = self.address(access.region.buffer)
                return address + access.region.start if access.is_ring else address
        return 0

    def address(self, buffer: str) -> int:
        return self.memory.address(self.program.buffers[buffer], self.schedule)

    def guard(self, op: Op) -> int:
        """The word that tells guarded kernels that their unit has failed; null without units."""
        return self.words.guard(self.schedule, op) if self.words else 0

    def signalling_calls(self, op: Op, priority: int) -> tuple[Call, ...]:
        """What counting, signalling and awaiting are on the device."""
        assert self.words is not None
        if self.schedule.sync is Signalling.MEMOPS:
            return memory_ops(op, self.words, self.schedule)
        return tuple(
            self.small_kernel(op, arguments, priority)
            for arguments in signalling_arguments(op, self.words, self.schedule)
        )

    def small_kernel(self, op: Op, arguments: tuple[Argument, ...], priority: int) -> KernelCall:
        image = signal_image(op)
        assert image is not None
        # That of the plan has a cubin, if it is still the one that we would call.
        found = self.kernels.images.get(image.key, image)
        function = self.kernels.load_beside(found, self.gpus[op.device], op)
        threads = int(found.launch.block[0])
        return KernelCall(function, (1, 1, 1), (threads, 1, 1), 0, arguments, priority=priority)

    def calls(self, op: Op, count: int | None) -> tuple[Call, ...]:
        """What the op does with ``count`` rows in use."""
        return self.calls_of(op)(count)

    def calls_of(self, op: Op) -> CallsOfCount:
        """The op's calls as a function of the count, with addresses looked up once a binding."""
        if op.name not in self.settled:
            self.settled[op.name] = self.settle(op)
        return self.settled[op.name]

    def settle(self, op: Op) -> CallsOfCount:
        match op.work:
            case Kernel():
                return whatever_the_count((self.launches[op.name],))
            case Copy():
                return self.copies(op)
            case Fill():
                return self.fills(op, op.work)
            case Join() | Extern():
                return whatever_the_count(())
            case Opaque() | Transfer() | Begin() | Signal() | Await():
                # Signals and awaits were settled when the work was prepared.
                raise nothing_to_run(op)

    def emitted(self, op: Op, count: int | None) -> tuple[Call, ...]:
        """The calls for which nodes are made: an op without rows now may have some another time."""
        calls = self.calls(op, count)
        if calls or not op.axis.per_count or not isinstance(op.work, Copy | Fill):
            return calls
        if op.name not in self.placeholder_counts:
            self.placeholder_counts[op.name] = first_count_with_rows(op, self.program.capacity)
        placeholder = self.placeholder_counts[op.name]
        return () if placeholder is None else self.calls(op, placeholder)

    def is_counted(self, op: Op) -> bool:
        """Whether its calls change with the count."""
        return op.axis.per_count > 0 and isinstance(op.work, Copy | Fill)

    def copies(self, op: Op) -> CallsOfCount:
        source, row_nbytes = self.base(op, "source")
        target, _ = self.base(op, "target")
        piece, axis = op.piece, op.axis
        # A slot of a ring begins at the first row of the piece.
        reads, writes = (0 if op[each].is_ring else row_nbytes for each in ("source", "target"))

        def calls(count: int | None) -> tuple[CopyCall, ...]:
            lo, hi = piece.bounds(axis, count)
            if lo >= hi or not row_nbytes:
                return ()
            nbytes = (hi - lo) * row_nbytes
            return (CopyCall(target + lo * writes, source + lo * reads, nbytes),)

        return calls

    def fills(self, op: Op, fill: Fill) -> CallsOfCount:
        target, row_nbytes = self.base(op, "target")
        kind = self.program.buffers[op["target"].region.buffer].dtype
        pattern = np.array(fill.value, dtype(kind).numpy).tobytes()
        piece, axis = op.piece, op.axis

        def calls(count: int | None) -> tuple[FillCall, ...]:
            lo, hi = piece.bounds(axis, count)
            elements = (hi - lo) * row_nbytes // len(pattern)
            return fill_calls(target + lo * row_nbytes, pattern, elements) if elements > 0 else ()

        return calls

    def base(self, op: Op, argument: str) -> tuple[int, int]:
        """The address at which an argument begins, and the bytes of one of its rows."""
        access = op[argument]
        buffer = self.program.buffers[access.region.buffer]
        address = self.address(buffer.name)
        if not address:
            raise UsageError(
                f"'{buffer.name}' is optional and nothing is bound to it, "
                f"but op '{op.name}' uses it"
            )
        slot = access.region.start if access.is_ring else 0
        return address + slot, buffer.row_nbytes


def whatever_the_count(calls: tuple[Call, ...]) -> CallsOfCount:
    return lambda count: calls


def signalling_arguments(
    op: Op, words: Words, schedule: Schedule
) -> Iterator[tuple[Argument, ...]]:
    """Arguments of each launch of ``templates/shared/units.cuh.j2`` that the op is."""
    unit = words.unit_of(schedule, op)
    epoch, failed = words.epoch(unit, schedule.entry), words.failed(unit)
    match op.work:
        case Begin():
            yield ((POINTER, epoch),)
        case Signal():
            targets = words.signalled(schedule, op)
            for first in range(0, len(targets), MOST):
                some = targets[first : first + MOST]
                own = table("Q", some, width(len(targets)))
                yield (own, ("i", len(some)), (POINTER, epoch), (POINTER, failed))
        case Await():
            wanted = words.wanted(schedule, op)
            for first in range(0, len(wanted), MOST):
                yield (
                    *await_arguments(wanted[first : first + MOST], width(len(wanted))),
                    ("Q", words.who(op, first)),
                    (POINTER, failed),
                    (POINTER, words.limit(unit)),
                    (POINTER, words.page),
                    (POINTER, words.record(unit)),
                )


def await_arguments(wanted: Sequence[Wanted], most: int) -> tuple[Argument, ...]:
    return (
        table("Q", [each.word for each in wanted], most),
        table("Q", [each.epoch for each in wanted], most),
        table("I", [int(each.is_earlier) for each in wanted], most),
        ("i", len(wanted)),
    )


def table(code: str, values: Sequence[int], most: int) -> Argument:
    return f"{most}{code}", (*values, *[0] * (most - len(values)))


def memory_ops(op: Op, words: Words, schedule: Schedule) -> tuple[Call, ...]:
    """Flags that are put up by a signal, and taken down by whoever has seen them. The launch is
    joined: no flag is put up again before it was taken down."""
    found: list[MemoryOp] = []
    if isinstance(op.work, Signal):
        found = [MemoryOp(False, address, 1) for address in words.signalled(schedule, op)]
    if isinstance(op.work, Await):
        for address in words.flags(schedule, op):
            found += [MemoryOp(True, address, 1), MemoryOp(False, address, 0)]
    starts = range(0, len(found), MOST_MEMORY_OPS - 1)
    return tuple(MemoryOpsCall(tuple(found[at : at + MOST_MEMORY_OPS - 1])) for at in starts)


def fill_calls(target: int, pattern: bytes, elements: int) -> tuple[FillCall, ...]:
    """Memsets of one element's bytes; eight bytes with unlike halves take one for each half.

    >>> fill_calls(64, b"\\1\\0\\0\\0\\0\\0\\0\\0", 3)[1]
    FillCall(target=68, value=0, element_nbytes=4, width=1, height=3, pitch=8)
    """
    if len(pattern) < 8:
        value = int.from_bytes(pattern, "little")
        return (FillCall(target, value, len(pattern), elements),)
    low, high = (int.from_bytes(half, "little") for half in (pattern[:4], pattern[4:]))
    if low == high:
        return (FillCall(target, low, 4, 2 * elements),)
    return tuple(
        FillCall(target + at, value, 4, 1, elements, 8) for at, value in ((0, low), (4, high))
    )


def first_count_with_rows(op: Op, capacity: int | None) -> int | None:
    """The smallest count for which the op has rows; None if there is none up to the capacity."""
    for count in range(1, (capacity or 0) + 1):
        lo, hi = op.piece.bounds(op.axis, count)
        if lo < hi:
            return count
    return None


def nothing_to_run(op: Op) -> Exception:
    if isinstance(op.work, Opaque):
        return error(
            "opaque-op",
            f"op '{op.name}' only declares what it touches: "
            "such a schedule can be checked, not run",
            op.span,
        )
    return CompilerBug("cuda", f"transfer '{op.name}' was not lowered")
