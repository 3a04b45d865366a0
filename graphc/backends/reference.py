"""The meaning of a plan in numpy: every op by its kernel's reference, in program order.

With a seed it runs some other order that the schedule allows, as streams (or a graph with only the
true edges) might; any such order must leave the same bytes. Buffers lie as the plan's memory says,
so that two that share bytes wrongly show it.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphc.backends.binding import check_array, check_count, named_arrays, unknown_buffer
from graphc.dtypes import dtype
from graphc.ir import (
    Access,
    Buffer,
    Copy,
    Emit,
    Extern,
    Fill,
    Join,
    Kernel,
    Op,
    Opaque,
    Role,
    Schedule,
    Transfer,
)
from graphc.kernels.beside import home, module_named
from graphc.plan import Plan, Variant
from graphc.text.diagnostics import CompilerBug, UsageError, error

Array = NDArray[Any]
POISON = 0xFF  # every float type reads it as NaN, every signed integer as -1


class ReferenceGraph:
    """A plan that runs on the host; the same surface as the CUDA graph."""

    def __init__(self, plan: Plan, *, variant: Variant | None = None) -> None:
        self.plan = plan
        self.variant = variant or plan.variants[0]
        self.schedule = self.variant.schedule
        self.program = self.schedule.program
        self.references = {
            step: self.load_reference(key) for step, key in self.variant.images.items()
        }
        self.allocations = {
            each.name: aligned_bytes(each.nbytes) for each in self.schedule.memory.allocations
        }
        self.arrays: dict[str, Array | None] = {
            name: None if buffer.is_optional else self.view(buffer)
            for name, buffer in self.program.buffers.items()
        }

    def load_reference(self, key: str) -> Callable[..., None]:
        image = self.plan.images[key]
        if image.reference is None:
            raise error(
                "no-reference",
                f"kernel '{image.template}' has no reference, so it cannot run on the host",
                hint="add 'reference: module:function' to its contract, or use --backend cuda",
            )
        return resolve(image.reference, home(image))

    def view(self, buffer: Buffer) -> Array:
        slot = self.schedule.memory.slots[buffer.name]
        raw = self.allocations[slot.allocation][slot.offset : slot.offset + buffer.nbytes]
        return raw.view(dtype(buffer.dtype).numpy).reshape(buffer.shape)

    def bind(self, arrays: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Use the caller's numpy arrays in place of the plan's own memory; nothing is copied."""
        for name, value in named_arrays(self.program.buffers, {**(arrays or {}), **named}):
            self.arrays[name] = check_array(self.program.buffers[name], value)

    def __getitem__(self, name: str) -> Array:
        """The array that holds a buffer, as it is now."""
        if name not in self.arrays:
            raise unknown_buffer(name, self.program.buffers)
        array = self.arrays[name]
        if array is None:
            raise UsageError(f"'{name}' is optional and nothing is bound to it")
        return array

    def launch(
        self, stream: object = None, count: int | None = None, *, seed: int | None = None
    ) -> None:
        """Run once with ``count`` rows in use; a seed picks another order that is allowed."""
        rows = check_count(self.program, count)
        order = self.program.ops if seed is None else interleaving(self.schedule, seed)
        for op in order:
            self.run(op, rows)

    def poison(self) -> None:
        """Overwrite all scratch, so that a read of stale bytes shows."""
        for name, buffer in self.program.buffers.items():
            array = self.arrays[name]
            if buffer.role is Role.SCRATCH and array is not None:
                array.view(np.uint8)[...] = POISON

    def synchronize(self) -> None:
        """Nothing to wait for: a launch has run when it returns."""

    def close(self) -> None:
        self.arrays.clear()

    def run(self, op: Op, count: int | None) -> None:
        lo, hi = op.piece.bounds(op.axis, count)
        match op.work:
            case Kernel():
                self.run_kernel(op, op.work, lo, hi, count)
            case Copy():
                source, target = self.argument(op, "source"), self.argument(op, "target")
                assert source is not None
                assert target is not None
                target[rows_in(op["target"], lo, hi)] = source[rows_in(op["source"], lo, hi)]
            case Fill():
                filled = self.argument(op, "target")
                assert filled is not None
                filled[lo:hi] = op.work.value
            case Extern():
                resolve(op.work.reference)(
                    **{each.argument: self.argument(op, each.argument) for each in op.accesses},
                    **op.work.scalars,
                )
            case Join():
                pass
            case Opaque() | Transfer():
                raise CompilerBug("reference", f"op '{op.name}' has nothing to run")

    def run_kernel(self, op: Op, kernel: Kernel, lo: int, hi: int, count: int | None) -> None:
        image = self.plan.images[self.variant.images[op.step]]
        given = {name: self.argument(op, name) for name in image.pointers}
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
        function = self.references[op.step]
        wanted = inspect.signature(function).parameters.values()
        names = [each.name for each in wanted if each.name in values or each.default is each.empty]
        function(**{name: values[name] for name in names})

    def argument(self, op: Op, name: str) -> Array | None:
        for access in op.accesses:
            if access.argument == name:
                return self.slot(access) if access.is_ring else self.arrays[access.region.buffer]
        return None

    def slot(self, access: Access) -> Array | None:
        """The rows of the slot of a ring."""
        array, nbytes = self.arrays[access.region.buffer], access.region.nbytes
        if array is None or not nbytes:
            return array
        first = access.region.start // nbytes * (len(array) // access.rows.factor)
        return array[first : first + len(array) // access.rows.factor]


def rows_in(access: Access, lo: int, hi: int) -> slice:
    """Where rows ``[lo, hi)`` are in an argument: a slot of a ring begins at row ``lo``."""
    return slice(0, hi - lo) if access.is_ring else slice(lo, hi)


def aligned_bytes(nbytes: int, alignment: int = 256) -> NDArray[np.uint8]:
    raw = np.full(nbytes + alignment, POISON, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def resolve(name: str, folder: Path | None = None) -> Callable[..., Any]:
    """The function that ``module:name`` names; ``folder`` is that of the kernel's template."""
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(module_named(module, folder), function)
    except (ImportError, AttributeError, ValueError) as problem:
        raise error(
            "no-reference",
            f"cannot load '{name}': {problem}",
            hint="write it as 'module:function', beside the template or importable",
        ) from None
    return found


def interleaving(schedule: Schedule, seed: int) -> Iterator[Op]:
    """Ops in a random order that the schedule allows."""
    ops = {op.name: op for op in schedule.program.ops}
    waiting = (
        predecessors_by_edges(schedule)
        if schedule.emit is Emit.NODES
        else predecessors_by_streams(schedule)
    )
    followers: dict[str, list[str]] = {name: [] for name in waiting}
    for name, before in waiting.items():
        for each in before:
            followers[each].append(name)
    missing = {name: len(before) for name, before in waiting.items()}
    ready = [name for name, number in missing.items() if not number]
    generator = random.Random(seed)
    while ready:
        name = ready.pop(generator.randrange(len(ready)))
        yield ops[name]
        for each in followers[name]:
            missing[each] -= 1
            if not missing[each]:
                ready.append(each)


def predecessors_by_edges(schedule: Schedule) -> dict[str, set[str]]:
    before: dict[str, set[str]] = {op.name: set() for op in schedule.program.ops}
    for first, second in schedule.edges:
        before[second].add(first)
    return before


def predecessors_by_streams(schedule: Schedule) -> dict[str, set[str]]:
    """What each op waits for directly: its stream's earlier op, and what its waits recorded."""
    reached: dict[str, Sequence[str]] = {}  # stream -> ops that its next op comes after
    events: dict[str, Sequence[str]] = {}
    before: dict[str, set[str]] = {}
    for each in schedule.instructions:
        known = reached.get(each.stream, ())
        match each.kind:
            case "run":
                before[each.op] = set(known)
                reached[each.stream] = (each.op,)
            case "record":
                events[each.event] = known
            case "wait":
                reached[each.stream] = (*known, *events[each.event])
            case "sync":
                raise CompilerBug("reference", "a schedule with host steps cannot run")
    return before
