"""All that a plan holds on the GPUs while it is open, and how it is given back.

What is acquired puts its release on one stack; a failure half-way, and ``close``, unwind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from time import monotonic
from typing import Any

from graphc.backends.cuda.emit import Emitter, Queues, prioritised
from graphc.backends.cuda.kernels import Kernels
from graphc.backends.cuda.memory import DeviceMemory, Gpu
from graphc.backends.cuda.words import Words
from graphc.backends.cuda.work import Work
from graphc.backends.extern import load_functions
from graphc.gpu.probe import current, enable_both_ways
from graphc.gpu.protocol import Driver, FillCall
from graphc.ir import Await, Emit, Schedule, Signalling
from graphc.machine import Machine, check_apart
from graphc.plan import WAIT_LIMIT_S, Need, Plan, Variant
from graphc.text.diagnostics import CudaError

PEER_NEEDS = {Need.PEER_COPY, Need.PEER_READ, Need.PEER_WRITE}
COUNT_WORD_NBYTES = 16
UNSET = -1  # no count


class Session:
    """Contexts, memory, kernels, streams and events of a variant of a plan, for all its entries."""

    def __init__(
        self,
        driver: Driver,
        plan: Plan,
        variant: Variant,
        machine: Machine,
        placed: Mapping[str, int],
        argument: Callable[[Schedule, str], Any],
        *,
        wait_limit_s: float = WAIT_LIMIT_S,
    ) -> None:
        self.driver, self.variant, self.schedule = driver, variant, variant.schedule
        self.schedules = variant.schedules  # by entry; the default one first
        self.machine, self.placed, self.wait_limit_s = machine, placed, wait_limit_s
        check_apart(self.schedule.units, placed, len(machine.gpus))
        self.resources = ExitStack()
        self.used: dict[int, Gpu] = {}  # by ordinal
        try:
            for ordinal in dict.fromkeys(placed.values()):
                self.used[ordinal] = self.open_gpu(machine, ordinal)
            self.gpus = {name: self.used[ordinal] for name, ordinal in placed.items()}
            self.open(plan, argument)
        except BaseException:
            self.close()
            raise

    def open_gpu(self, machine: Machine, ordinal: int) -> Gpu:
        driver = self.driver
        gpu = Gpu(machine.gpus[ordinal], driver.retain_context(ordinal))
        self.resources.callback(driver.release_context, ordinal)
        with current(driver, gpu.context):
            gpu.count_word = driver.allocate(COUNT_WORD_NBYTES)
        self.resources.callback(self.within, gpu, driver.free, gpu.count_word)
        return gpu

    def open(self, plan: Plan, argument: Callable[[Schedule, str], Any]) -> None:
        driver, gpus = self.driver, self.gpus
        origin = next(each for each in self.schedule.streams if each.name == self.schedule.origin)
        self.home = gpus[origin.device]
        self.enable_peers()
        self.memory = DeviceMemory(driver, tuple(self.schedules.values()), gpus)
        self.resources.callback(self.memory.release)
        self.memory.allocate_scratch()
        self.kernels = Kernels(driver, plan.images)
        self.resources.callback(self.kernels.release)
        self.words = self.open_words() if self.schedule.units else None
        self.emitters = {
            entry: self.open_emitter(schedule, partial(argument, schedule))
            for entry, schedule in self.schedules.items()
        }
        self.emitter = self.emitters[self.schedule.entry]
        self.work, self.queues = self.emitter.work, self.emitter.queues
        self.prepare()
        self.own_stream = self.open_stream(self.home)
        self.side_streams = {gpu.context: self.open_stream(gpu) for gpu in self.used.values()}
        self.unit_streams = {
            unit.name: self.own_stream
            if unit.origin == self.schedule.origin
            else self.open_stream(gpus[self.emitter.device_of(unit.origin)])
            for unit in self.schedule.parts
        }
        self.joints: dict[int, int] = {}  # context -> an event with which to order streams
        self.rows = UNSET  # the count to which the words on the GPUs are set

    def open_emitter(self, schedule: Schedule, argument: Callable[[str], Any]) -> Emitter:
        driver, gpus = self.driver, self.gpus
        work = Work(self.variant, schedule, self.memory, self.kernels, gpus, self.words)
        queues = Queues(driver, schedule, gpus)
        self.resources.callback(queues.close)
        queues.open()
        functions = load_functions(schedule.program)
        return Emitter(driver, work, queues, gpus, argument, functions)

    def open_words(self) -> Words:
        schedules = tuple(self.schedules.values())
        is_mapped = self.schedule.sync is Signalling.MEMOPS or not self.can_write_words()
        words = Words(self.driver, schedules, self.gpus, is_mapped, self.wait_limit_s)
        self.resources.callback(words.release)
        words.allocate()
        return words

    def can_write_words(self) -> bool:
        """Whether every unit can write the words of those that await it; then it is allowed to."""
        pairs = tuple(dict.fromkeys(signalling_pairs(self.schedules.values())))
        for source, target in pairs:
            ordinals = self.placed[source], self.placed[target]
            why = self.machine.why_not(Need.PEER_WRITE.value, *ordinals)
            if why is not None:
                self.memory.notes.append(f"signals go by way of mapped memory: {why}")
                return False
        for source, target in pairs:
            enable_both_ways(self.driver, self.gpus[source].context, self.gpus[target].context)
        return True

    def open_stream(self, gpu: Gpu) -> int:
        with current(self.driver, gpu.context):
            stream = self.driver.create_stream(0)
        self.resources.callback(self.driver.destroy_stream, stream)
        return stream

    def enable_peers(self) -> None:
        for each in self.variant.requires:
            if each.need in PEER_NEEDS:
                source, target = self.gpus[each.source], self.gpus[each.target]
                enable_both_ways(self.driver, source.context, target.context)

    def prepare(self) -> None:
        """Load kernels and settle their launches with the memory as it is bound now."""
        for emitter in self.emitters.values():
            # Explicit nodes are given the priority of their stream; captured ones inherit it.
            by_nodes = emitter.schedule.emit is Emit.NODES
            emitter.work.prepare(prioritised(emitter.schedule) if by_nodes else {})

    def within(self, gpu: Gpu, function: Callable[[int], None], handle: int) -> None:
        with current(self.driver, gpu.context):
            function(handle)

    def set_counts_apart(self, rows: int, streams: Mapping[str, int]) -> None:
        """Set the count of every unit's GPU on the stream of the unit."""
        for unit in self.schedule.parts:
            gpu = self.gpus[unit.devices[0]]
            with current(self.driver, gpu.context):
                self.driver.fill(FillCall(gpu.count_word, rows, 4, 1), streams[unit.name])

    def set_count(self, rows: int, stream: int, context: int) -> None:
        """Set every GPU's count after what the stream holds, before what it gets next."""
        for gpu in self.used.values():
            call = FillCall(gpu.count_word, rows, 4, 1)
            if gpu.context == context:
                with current(self.driver, context):
                    self.driver.fill(call, stream)
                continue
            side = self.side_streams[gpu.context]
            self.order(stream, context, side)
            with current(self.driver, gpu.context):
                self.driver.fill(call, side)
            self.order(side, gpu.context, stream)

    def order(self, before: int, context: int, after: int) -> None:
        """What ``after`` gets from now on comes after what ``before`` (of that context) has now."""
        with current(self.driver, context):
            joint = self.joint(context)
            self.driver.record(joint, before)
            self.driver.wait(after, joint)

    def joint(self, context: int) -> int:
        """An event of a context, with which streams are ordered."""
        if context not in self.joints:
            with current(self.driver, context):
                self.joints[context] = self.driver.create_event()
            self.resources.callback(self.driver.destroy_event, self.joints[context])
        return self.joints[context]

    @property
    def streams(self) -> tuple[int, ...]:
        others = [*self.side_streams.values(), *self.unit_streams.values()]
        return tuple(dict.fromkeys([self.own_stream, *others]))

    def end_memory_waits(self, streams: Iterable[int]) -> None:
        """Wait for launches that wait by memory nodes, which nothing ends by itself; after the
        limit, let nobody wait any longer."""
        if self.words is None or self.schedule.sync is not Signalling.MEMOPS:
            return
        waiting = tuple(dict.fromkeys([*streams, *self.streams]))
        until_s = monotonic() + (0 if self.words.stopped.value else self.wait_limit_s)
        while not all(self.driver.is_idle(stream) for stream in waiting):
            if monotonic() >= until_s:
                self.end_waits(waiting)

    def end_waits(self, streams: Iterable[int]) -> None:
        """Let no unit wait any longer, and wait until the streams are idle."""
        if self.words is None:
            return
        self.words.stop()
        if self.schedule.sync is Signalling.MEMOPS:
            waiting = tuple(streams)
            # Again and again: replays that follow take the flags down. No call that could itself
            # be held up by what waits.
            while not all(self.driver.is_idle(stream) for stream in waiting):
                self.words.lift_all()

    def wait_for_all(self) -> None:
        for gpu in self.used.values():
            with current(self.driver, gpu.context):
                self.driver.synchronize_context()

    def close(self) -> None:
        """Wait for what runs, then give everything back, whatever fails on the way."""
        with suppress(CudaError):
            self.wait_for_all()
        with suppress(CudaError):
            self.resources.close()


def signalling_pairs(schedules: Iterable[Schedule]) -> Iterator[tuple[str, str]]:
    """Devices of which the first writes a word that the second awaits."""
    for schedule in schedules:
        homes = {unit.name: unit.devices[0] for unit in schedule.units}
        for op in schedule.program:
            for awaited in op.work.signals if isinstance(op.work, Await) else ():
                yield homes[awaited.unit], op.device
