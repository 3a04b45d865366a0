"""The memory by which units wait for each other: counters, words, limits, and what went wrong.

Each unit has a block on its own GPU, which only its kernels touch, but for the words: each of them
is written by one other unit. A word lies in a slot with what its await has to know. Where GPUs
cannot write each other's memory, and for the driver's memory nodes, the slots lie in mapped memory
instead. The page that the host shares with all units says whether any of them has given up; a slot
is marked whose word did not come in time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphc.backends.cuda.memory import Gpu
from graphc.gpu.probe import current
from graphc.gpu.protocol import Driver
from graphc.ir import Await, Awaited, Op, Schedule, Signal, Signalling, Unit
from graphc.plan import WAIT_LIMIT_S
from graphc.text.diagnostics import CompilerBug, CudaError

WORD_NBYTES, SLOT_NBYTES = 8, 64
FAILED, LIMIT, FIRST_EPOCH = 0, 8, 16  # bytes from the start of a unit's block
STOPPED = 0  # bytes from the start of the shared page
# Fields of a slot, as ``templates/shared/units.cuh.j2`` has them.
SLOT_STOPPED, SLOT_FAILED, SLOT_RAN_OUT = 16, 24, 32
# Slots begin so many bytes after a multiple of their own: the low half of no address is 0.
SLOT_SHIFT = 32


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an await waits for: its slot, the counter that the word is compared with, and whether
    the replay before the one at hand will do."""

    slot: int
    epoch: int
    is_earlier: bool


@dataclass(slots=True)
class Words:
    """Where all of this lies, for all entries of a variant."""

    driver: Driver
    schedules: Sequence[Schedule]
    gpus: Mapping[str, Gpu]
    is_mapped: bool  # the words lie in mapped memory
    limit_s: float = WAIT_LIMIT_S
    units: dict[str, Unit] = field(default_factory=dict)
    places: dict[tuple[str, str], int] = field(default_factory=dict)  # (unit, signal) -> its number
    awaits: dict[tuple[str, str], tuple[Op, Awaited]] = field(default_factory=dict)  # the first
    blocks: dict[str, int] = field(default_factory=dict)  # unit -> address
    page: int = 0
    stopped: ctypes.c_uint32 = field(default_factory=ctypes.c_uint32)

    def __post_init__(self) -> None:
        for schedule in self.schedules:
            self.units |= {unit.name: unit for unit in schedule.units}
            for op in schedule.program:
                for unit, signal in self.needed(schedule, op):
                    self.places.setdefault((unit, signal), len(self.places))
                for each in op.work.signals if isinstance(op.work, Await) else ():
                    key = self.unit_of(schedule, op), each.signal
                    self.awaits.setdefault(key, (op, each))

    def needed(self, schedule: Schedule, op: Op) -> Iterator[tuple[str, str]]:
        """Units and names of the words that an op needs. A flag that is taken down by who has seen
        it is one for each await; a counter serves all awaits of its unit."""
        is_flag = schedule.sync is Signalling.MEMOPS
        match op.work:
            case Signal(signal, to) if not is_flag:
                yield from ((unit, signal) for unit in to)
            case Await(signals):
                unit = self.unit_of(schedule, op)
                yield from ((unit, flag(op, each) if is_flag else each.signal) for each in signals)

    def unit_of(self, schedule: Schedule, op: Op) -> str:
        for unit in schedule.units:
            if op.device in unit.devices:
                return unit.name
        raise CompilerBug("cuda", f"op '{op.name}' is in no unit")

    def allocate(self) -> None:
        for name, unit in self.units.items():
            with current(self.driver, self.gpu(unit).context):
                self.blocks[name] = self.driver.allocate(self.block_nbytes)
        with current(self.driver, self.gpu(next(iter(self.units.values()))).context):
            self.page = self.driver.allocate_host(self.page_nbytes)
        self.stopped = ctypes.c_uint32.from_address(self.page + STOPPED)
        self.clear()

    def gpu(self, unit: Unit) -> Gpu:
        return self.gpus[unit.devices[0]]

    @property
    def first_slot(self) -> int:
        """Bytes from the start of a unit's block, or of the page, to the first slot."""
        before = STOPPED if self.is_mapped else FIRST_EPOCH + WORD_NBYTES * len(self.schedules)
        return (before // SLOT_NBYTES + 1) * SLOT_NBYTES + SLOT_SHIFT

    @property
    def block_nbytes(self) -> int:
        if self.is_mapped:
            return FIRST_EPOCH + WORD_NBYTES * len(self.schedules)
        return self.first_slot + SLOT_NBYTES * len(self.places)

    @property
    def page_nbytes(self) -> int:
        return self.first_slot + SLOT_NBYTES * len(self.places) if self.is_mapped else SLOT_NBYTES

    def clear(self) -> None:
        """Nothing has been launched, nothing has failed. No unit may be running."""
        for name, unit in self.units.items():
            block = np.zeros(self.block_nbytes // WORD_NBYTES, np.uint64)
            block[LIMIT // WORD_NBYTES] = round(1e9 * self.limit_s)
            if not self.is_mapped:
                self.set_pointers(block, name)
            self.put(unit, self.blocks[name], block)
        page = np.zeros(self.page_nbytes // WORD_NBYTES, np.uint64)
        if self.is_mapped:
            for name in self.units:
                self.set_pointers(page, name)
        ctypes.memmove(self.page, page.ctypes.data, page.nbytes)

    def set_pointers(self, block: NDArray[np.uint64], unit: str) -> None:
        """Tell a unit's slots where it is said that all have stopped, and that it has failed."""
        for (owner, _), at in self.places.items():
            if owner == unit:
                first = self.first_slot + SLOT_NBYTES * at
                block[(first + SLOT_STOPPED) // WORD_NBYTES] = self.page + STOPPED
                block[(first + SLOT_FAILED) // WORD_NBYTES] = self.failed(unit)

    def put(self, unit: Unit, address: int, values: NDArray[np.uint64]) -> None:
        with current(self.driver, self.gpu(unit).context):
            self.driver.write(address, values.ctypes.data, values.nbytes)

    def lift_all(self) -> None:
        """Let every wait for a flag in mapped memory through."""
        for unit, name in self.places if self.is_mapped else ():
            ctypes.c_uint32.from_address(self.slot(unit, name)).value = 1

    def release(self) -> None:
        for name, block in self.blocks.items():
            with current(self.driver, self.gpu(self.units[name]).context):
                self.driver.free(block)
        self.blocks.clear()
        if self.page:
            self.stopped = ctypes.c_uint32()
            self.driver.free_host(self.page)
            self.page = 0

    # Addresses.

    def failed(self, unit: str) -> int:
        return self.blocks[unit] + FAILED

    def guard(self, schedule: Schedule, op: Op) -> int:
        """The word that lets guarded kernels do nothing: that of their unit, which its awaits set;
        where no kernel awaits, the one that the host sets, without a call that could be held up."""
        if schedule.sync is Signalling.MEMOPS:
            return self.page + STOPPED
        return self.failed(self.unit_of(schedule, op))

    def limit(self, unit: str) -> int:
        return self.blocks[unit] + LIMIT

    def epoch(self, unit: str, entry: str) -> int:
        entries = [each.entry for each in self.schedules]
        return self.blocks[unit] + FIRST_EPOCH + WORD_NBYTES * entries.index(entry)

    def slot(self, unit: str, name: str) -> int:
        """Where a word lies, with what its await has to know."""
        start = self.page if self.is_mapped else self.blocks[unit]
        return start + self.first_slot + SLOT_NBYTES * self.places[unit, name]

    def signalled(self, schedule: Schedule, op: Op) -> tuple[int, ...]:
        """The words that a signal sets."""
        assert isinstance(op.work, Signal)
        if schedule.sync is Signalling.FLAGS:
            return tuple(self.slot(unit, op.work.signal) for unit in op.work.to)
        return tuple(
            self.slot(self.unit_of(schedule, each), flag(each, awaited))
            for each in schedule.program
            if isinstance(each.work, Await)
            for awaited in each.work.signals
            if awaited.signal == op.work.signal
        )

    def armed(self, schedule: Schedule, unit: str) -> tuple[Wanted, ...]:
        """What the awaits of a unit wait for in one replay of an entry: each word once."""
        found: dict[int, Wanted] = {}
        for op in schedule.program:
            if isinstance(op.work, Await) and self.unit_of(schedule, op) == unit:
                for each in op.work.signals:
                    slot, epoch = self.slot(unit, each.signal), self.epoch(unit, each.entry)
                    is_earlier = each.is_handshake and each.entry == schedule.entry
                    found[slot] = Wanted(slot, epoch, is_earlier)
        return tuple(found.values())

    def awaited(self, schedule: Schedule, op: Op) -> tuple[int, ...]:
        """The slots of the words that an await waits for."""
        assert isinstance(op.work, Await)
        unit, is_flag = self.unit_of(schedule, op), schedule.sync is Signalling.MEMOPS
        names = (flag(op, each) if is_flag else each.signal for each in op.work.signals)
        return tuple(self.slot(unit, name) for name in names)

    # What went wrong.

    def stop(self) -> None:
        """Let every await give up, and refuse launches."""
        self.stopped.value = 1

    def fault(self) -> CudaError | None:
        """Why launches are refused, if they are."""
        if not self.stopped.value:
            return None
        late = [(key[0], *found) for key, found in self.awaits.items() if self.ran_out(*key)]
        if not late:
            return stopped_by_host()
        told = "; ".join(
            f"unit '{unit}' waited {self.limit_s:g} s at '{op.name}' for '{awaited.signal}' of "
            f"unit '{awaited.unit}', which did not come"
            for unit, op, awaited in late
        )
        return CudaError(
            "await a signal",
            "WAIT_TIMEOUT",
            f"{told}; all units have given up, and what they left is not to be used",
            op=late[0][1].name,
            span=late[0][1].span,
            hint="was every unit launched, and is none held up by other work on its stream, a "
            "debugger or a profiler that runs kernels one by one? Call graph.reset() and launch "
            "again; instantiate(wait_limit_s=...) sets how long units wait",
        )

    def ran_out(self, unit: str, signal: str) -> bool:
        """Whether this unit waited for this signal in vain."""
        if (unit, signal) not in self.places:
            return False  # a flag, for which the driver waits without a limit
        mark = np.zeros(1, np.uint32)
        with current(self.driver, self.gpu(self.units[unit]).context):
            self.driver.read(mark.ctypes.data, self.slot(unit, signal) + SLOT_RAN_OUT, mark.nbytes)
        return bool(mark[0])


def flag(op: Op, awaited: Awaited) -> str:
    return f"{op.name} {awaited.signal}"


def stopped_by_host() -> CudaError:
    return CudaError(
        "launch",
        "UNITS_STOPPED",
        "a launch failed when some of its units were launched and others were not, so none of them "
        "waits any more, and what they left is not to be used",
        hint="call graph.reset() and launch again",
    )
