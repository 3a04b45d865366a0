"""The memory by which units wait for each other: counters, words, limits, and what went wrong.

Each unit has a block on its own GPU, which only its kernels touch, but for the words: each of them
is written by one other unit. Where GPUs cannot write each other's memory, and for the driver's
memory nodes, the words lie in mapped memory instead. The page that the host shares with all units
says whether any of them has given up, and for each unit which await ran out of time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphc.backends.cuda.memory import Gpu
from graphc.gpu.probe import current
from graphc.gpu.protocol import Driver
from graphc.ir import Await, Awaited, Op, Schedule, Signal, Signalling, Unit
from graphc.plan import WAIT_LIMIT_S
from graphc.text.diagnostics import CompilerBug, CudaError

WORD_NBYTES = 8
FAILED, LIMIT, FIRST_EPOCH = 0, 8, 16  # bytes from the start of a unit's block
STOPPED, FIRST_RECORD = 0, 64  # bytes from the start of the shared page
RECORD_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an await waits for: the word, the counter that it is compared with, and whether the
    replay before the one at hand will do."""

    word: int
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
    awaits: list[Op] = field(default_factory=list)  # an await is told by its place here
    blocks: dict[str, int] = field(default_factory=dict)  # unit -> address
    page: int = 0
    stopped: ctypes.c_uint32 = field(default_factory=ctypes.c_uint32)

    def __post_init__(self) -> None:
        for schedule in self.schedules:
            self.units |= {unit.name: unit for unit in schedule.units}
            for op in schedule.program:
                if isinstance(op.work, Await):
                    self.awaits.append(op)
                for unit, signal in self.needed(schedule, op):
                    self.places.setdefault((unit, signal), len(self.places))

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
    def block_nbytes(self) -> int:
        words = 0 if self.is_mapped else len(self.places)
        return FIRST_EPOCH + WORD_NBYTES * (len(self.schedules) + words)

    @property
    def page_nbytes(self) -> int:
        words = len(self.places) if self.is_mapped else 0
        return self.first_mapped_word + WORD_NBYTES * words

    @property
    def first_mapped_word(self) -> int:
        return FIRST_RECORD + RECORD_NBYTES * len(self.units)

    def clear(self) -> None:
        """Nothing has been launched, nothing has failed. No unit may be running."""
        block = np.zeros(self.block_nbytes // WORD_NBYTES, np.uint64)
        block[LIMIT // WORD_NBYTES] = round(1e9 * self.limit_s)
        for name, unit in self.units.items():
            self.put(unit, self.blocks[name], block)
        ctypes.memset(self.page, 0, self.page_nbytes)

    def put(self, unit: Unit, address: int, values: np.ndarray) -> None:
        with current(self.driver, self.gpu(unit).context):
            self.driver.write(address, values.ctypes.data, values.nbytes)

    def lift_all(self) -> None:
        """Let every wait for a flag in mapped memory through."""
        for at in range(len(self.places) if self.is_mapped else 0):
            address = self.page + self.first_mapped_word + WORD_NBYTES * at
            ctypes.c_uint32.from_address(address).value = 1

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

    def record(self, unit: str) -> int:
        return self.page + FIRST_RECORD + RECORD_NBYTES * list(self.units).index(unit)

    def epoch(self, unit: str, entry: str) -> int:
        entries = [each.entry for each in self.schedules]
        return self.blocks[unit] + FIRST_EPOCH + WORD_NBYTES * entries.index(entry)

    def word(self, unit: str, name: str) -> int:
        at = self.places[unit, name]
        if self.is_mapped:
            return self.page + self.first_mapped_word + WORD_NBYTES * at
        return self.blocks[unit] + FIRST_EPOCH + WORD_NBYTES * (len(self.schedules) + at)

    def signalled(self, schedule: Schedule, op: Op) -> tuple[int, ...]:
        """The words that a signal sets."""
        assert isinstance(op.work, Signal)
        if schedule.sync is Signalling.FLAGS:
            return tuple(self.word(unit, op.work.signal) for unit in op.work.to)
        return tuple(
            self.word(self.unit_of(schedule, each), flag(each, awaited))
            for each in schedule.program
            if isinstance(each.work, Await)
            for awaited in each.work.signals
            if awaited.signal == op.work.signal
        )

    def wanted(self, schedule: Schedule, op: Op) -> tuple[Wanted, ...]:
        """What an await of counters waits for."""
        assert isinstance(op.work, Await)
        unit = self.unit_of(schedule, op)
        return tuple(
            Wanted(
                self.word(unit, each.signal),
                self.epoch(unit, each.entry),
                each.is_handshake and each.entry == schedule.entry,
            )
            for each in op.work.signals
        )

    def flags(self, schedule: Schedule, op: Op) -> tuple[int, ...]:
        """The flags that an await of the driver's waits for and takes down."""
        assert isinstance(op.work, Await)
        unit = self.unit_of(schedule, op)
        return tuple(self.word(unit, flag(op, each)) for each in op.work.signals)

    # What went wrong.

    def stop(self) -> None:
        """Let every await give up, and refuse launches."""
        self.stopped.value = 1

    def fault(self) -> CudaError | None:
        """Why launches are refused, if they are."""
        if not self.stopped.value:
            return None
        late = [(unit, found) for unit in self.units if (found := self.ran_out(unit)) is not None]
        if not late:
            return stopped_by_host()
        told = "; ".join(
            f"unit '{unit}' waited {self.limit_s:g} s at '{op.name}' for '{awaited.signal}' of "
            f"unit '{awaited.unit}', which did not come"
            for unit, (op, awaited) in late
        )
        return CudaError(
            "await a signal",
            "WAIT_TIMEOUT",
            f"{told}; all units have given up, and what they left is not to be used",
            op=late[0][1][0].name,
            span=late[0][1][0].span,
            hint="was every unit launched, and is none held up by other work on its stream, a "
            "debugger or a profiler that runs kernels one by one? Call graph.reset() and launch "
            "again; instantiate(wait_limit_s=...) sets how long units wait",
        )

    def ran_out(self, unit: str) -> tuple[Op, Awaited] | None:
        found = ctypes.c_uint64.from_address(self.record(unit)).value
        if not found:
            return None
        op = self.awaits[(found >> 32) - 1]
        assert isinstance(op.work, Await)
        return op, op.work.signals[found & 0xFFFFFFFF]

    def who(self, op: Op, first: int) -> int:
        """What an await writes into its unit's record for its word number ``first``."""
        return (self.awaits.index(op) + 1 << 32) | first


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
