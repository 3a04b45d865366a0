"""The plan's allocations on GPUs and in mapped memory, and the caller's arrays in their place.

A buffer lies in its allocation at its slot's offset. Scratch is allocated at once; a buffer with
a role when it is first needed, so that one to which the caller binds an array costs nothing.
Mapped memory lies on the NUMA node of the devices that use it; where they are on different nodes,
on that of the first (the source), and a note says so.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from graphc.gpu.probe import current, numa_node
from graphc.gpu.protocol import DeviceFacts, Driver, FillCall
from graphc.ir import MAPPED, POISON, Allocation, Buffer, Role, Schedule, Slot
from graphc.text.diagnostics import CudaError

SMALLEST = 256  # bytes: empty buffers have an address too
DEFAULT_STREAM = 0  # of the current context
# What may be read though nobody wrote it: state goes on from there, a status says nothing yet.
FIRST_BYTES = {Role.STATE: 0, Role.STATUS: 0, Role.OUTPUT: POISON}


@dataclass(slots=True)
class Gpu:
    """One GPU in use: its facts, its primary context, and its word for the count in use."""

    facts: DeviceFacts
    context: int
    count_word: int = 0

    @property
    def ordinal(self) -> int:
        return self.facts.ordinal


@dataclass(slots=True)
class DeviceMemory:
    """Where every buffer of some schedules lies now: of the entries of a plan, which share what has
    a role. Allocations of one name are one memory, as large as the largest of them."""

    driver: Driver
    schedules: Sequence[Schedule]
    gpus: Mapping[str, Gpu]  # by logical device
    allocations: dict[str, Allocation] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)  # allocation -> its address
    owned: dict[str, int] = field(default_factory=dict)  # those of them that are ours
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for each in (each for schedule in self.schedules for each in schedule.memory.allocations):
            known = self.allocations.get(each.name)
            if known is None or known.nbytes < each.nbytes:
                self.allocations[each.name] = each

    def slots(self) -> Iterator[tuple[Buffer, Slot]]:
        for schedule in self.schedules:
            for name, buffer in schedule.program.buffers.items():
                yield buffer, schedule.memory.slots[name]

    def slot(self, buffer: Buffer, schedule: Schedule | None = None) -> Slot:
        """Of a buffer in one of the schedules; of one with a role it is the same in all."""
        if schedule is not None:
            return schedule.memory.slots[buffer.name]
        known = (each.memory.slots for each in self.schedules)
        return next(slots[buffer.name] for slots in known if buffer.name in slots)

    def allocate_scratch(self) -> None:
        with_role = self.bindable()
        for each in self.allocations.values():
            if each.name not in with_role:
                self.ensure(each)

    def allocate_rest(self) -> None:
        """Give memory to every buffer that needs some and has none."""
        optional = {slot.allocation for buffer, slot in self.slots() if buffer.is_optional}
        for each in self.allocations.values():
            if each.name not in optional:
                self.ensure(each)

    def bindable(self) -> set[str]:
        """Allocations of buffers with a role: each holds one of them, and its overlays."""
        return {
            slot.allocation
            for buffer, slot in self.slots()
            if buffer.role is not Role.SCRATCH and buffer.overlay is None
        }

    def own(self, buffer: Buffer) -> int:
        """The address of our own memory for a buffer, in which it lies from now on."""
        name = self.slot(buffer).allocation
        if name not in self.owned:
            self.acquire(self.allocations[name])
        self.bases[name] = self.owned[name]
        return self.address(buffer)

    def bind(self, buffer: Buffer, pointer: int) -> None:
        slot = self.slot(buffer)
        self.bases[slot.allocation] = pointer - slot.offset

    def address(self, buffer: Buffer, schedule: Schedule | None = None) -> int:
        """Where the buffer lies; 0 if it is optional and nothing is bound to it."""
        slot = self.slot(buffer, schedule)
        base = self.bases.get(slot.allocation)
        return 0 if base is None else base + slot.offset

    def ensure(self, allocation: Allocation) -> None:
        if allocation.name not in self.bases:
            self.acquire(allocation)
            self.bases[allocation.name] = self.owned[allocation.name]

    def acquire(self, allocation: Allocation) -> None:
        """Allocate it; where its buffers lie changes only once that has gone well."""
        nbytes = max(allocation.nbytes, SMALLEST)
        is_mapped = allocation.device == MAPPED
        pointer = (self.mapped if is_mapped else self.on_device)(allocation, nbytes)
        self.owned[allocation.name] = pointer
        value = self.first_bytes().get(allocation.name)
        if value is None:
            return
        if is_mapped:
            ctypes.memset(pointer, value, nbytes)
            return
        with current(self.driver, self.gpus[allocation.device].context):
            self.driver.fill(FillCall(pointer, value, 1, nbytes), DEFAULT_STREAM)
            self.driver.synchronize_context()

    def first_bytes(self) -> dict[str, int]:
        """Allocation -> what its bytes are at first, where a caller may read what nobody wrote."""
        return {
            slot.allocation: FIRST_BYTES[buffer.role]
            for buffer, slot in self.slots()
            if buffer.role in FIRST_BYTES
        }

    def on_device(self, allocation: Allocation, nbytes: int) -> int:
        gpu = self.gpus[allocation.device]
        with current(self.driver, gpu.context):
            try:
                return self.driver.allocate(nbytes)
            except CudaError as problem:
                where = f"GPU {gpu.ordinal} ({gpu.facts.name})"
                raise no_memory(self.driver, problem, allocation, where) from None

    def mapped(self, allocation: Allocation, nbytes: int) -> int:
        gpus = [self.gpus[name] for name in allocation.near] or list(self.gpus.values())
        node = self.nearest_node(allocation, gpus)
        with current(self.driver, gpus[0].context), prefer_node(node):
            try:
                return self.driver.allocate_host(nbytes)
            except CudaError as problem:
                raise no_memory(self.driver, problem, allocation, "the host") from None

    def nearest_node(self, allocation: Allocation, gpus: list[Gpu]) -> int | None:
        nodes = [(gpu.ordinal, numa_node(gpu.facts.pci)) for gpu in gpus]
        known = [node for _, node in nodes if node is not None]
        if len(set(known)) > 1:
            lie = ", ".join(f"GPU {ordinal} on node {node}" for ordinal, node in nodes)
            self.notes.append(
                f"mapped memory '{allocation.name}' is on NUMA node {known[0]}, "
                f"next to the first device that uses it ({lie})"
            )
        return known[0] if known else None

    def release(self) -> None:
        for name, pointer in self.owned.items():
            device = self.allocations[name].device
            if device == MAPPED:
                self.driver.free_host(pointer)
                continue
            with current(self.driver, self.gpus[device].context):
                self.driver.free(pointer)
        self.owned.clear()
        self.bases.clear()


def no_memory(driver: Driver, problem: CudaError, allocation: Allocation, where: str) -> CudaError:
    if problem.error != "CUDA_ERROR_OUT_OF_MEMORY":
        return problem
    free, total = driver.free_memory()
    left = f"; {free:,} of {total:,} bytes are free" if where != "the host" else ""
    return CudaError(
        problem.call,
        problem.error,
        f"{allocation.nbytes:,} bytes for '{allocation.name}' do not fit on {where}{left}",
        hint="end what else uses this memory, or compile for fewer rows or with 'memory: tight'",
    )


# Linux' numbers of get_mempolicy and set_mempolicy, which the C library does not export.
POLICY_CALLS = {"x86_64": (239, 238), "aarch64": (236, 237)}
PREFERRED = 1
MASK_BITS = 1024


@contextmanager
def prefer_node(node: int | None) -> Iterator[None]:
    """New pages of this thread lie on a NUMA node if it has room; the policy before comes back."""
    calls = POLICY_CALLS.get(platform.machine())
    if node is None or calls is None or platform.system() != "Linux":
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    get_policy, set_policy = calls
    mode, mask = ctypes.c_int(0), (ctypes.c_ulong * (MASK_BITS // 64))()
    libc.syscall(get_policy, ctypes.byref(mode), mask, ctypes.c_ulong(MASK_BITS), None, 0)
    wanted = (ctypes.c_ulong * (MASK_BITS // 64))()
    wanted[node // 64] = 1 << node % 64
    libc.syscall(set_policy, PREFERRED, wanted, ctypes.c_ulong(MASK_BITS))
    try:
        yield
    finally:
        libc.syscall(set_policy, mode, mask, ctypes.c_ulong(MASK_BITS))
