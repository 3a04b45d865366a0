"""All that a plan holds on the GPUs while it is open, and how it is given back.

What is acquired puts its release on one stack; a failure half-way, and ``close``, unwind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from graphc.backends.cuda.emit import Emitter, Queues, prioritised
from graphc.backends.cuda.kernels import Kernels
from graphc.backends.cuda.memory import DeviceMemory, Gpu
from graphc.backends.cuda.work import Work
from graphc.backends.extern import load_functions
from graphc.gpu.probe import current, enable_both_ways
from graphc.gpu.protocol import Driver, FillCall
from graphc.ir import Emit
from graphc.machine import Machine
from graphc.plan import Need, Plan, Variant
from graphc.text.diagnostics import CudaError

PEER_NEEDS = {Need.PEER_COPY, Need.PEER_READ, Need.PEER_WRITE}
COUNT_WORD_NBYTES = 16


class Session:
    """Contexts, memory, kernels, streams and events of one variant of a plan."""

    def __init__(
        self,
        driver: Driver,
        plan: Plan,
        variant: Variant,
        machine: Machine,
        placed: Mapping[str, int],
        argument: Callable[[str], Any],
    ) -> None:
        self.driver, self.variant, self.schedule = driver, variant, variant.schedule
        self.functions = load_functions(self.schedule.program)
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

    def open(self, plan: Plan, argument: Callable[[str], Any]) -> None:
        driver, schedule, gpus = self.driver, self.schedule, self.gpus
        origin = next(each for each in schedule.streams if each.name == schedule.origin)
        self.home = gpus[origin.device]
        self.enable_peers()
        self.memory = DeviceMemory(driver, schedule, gpus)
        self.resources.callback(self.memory.release)
        self.memory.allocate_scratch()
        self.kernels = Kernels(driver, plan.images)
        self.resources.callback(self.kernels.release)
        self.work = Work(self.variant, self.memory, self.kernels, gpus)
        self.prepare()
        self.queues = Queues(driver, schedule, gpus)
        self.resources.callback(self.queues.close)
        self.queues.open()
        self.emitter = Emitter(driver, self.work, self.queues, gpus, argument, self.functions)
        self.own_stream = self.open_stream(self.home)
        self.side_streams = {gpu.context: self.open_stream(gpu) for gpu in self.used.values()}
        self.joints: dict[int, int] = {}  # context -> an event with which to order streams

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
        # Explicit nodes are given the priority of their stream; captured ones inherit it.
        by_nodes = self.schedule.emit is Emit.NODES
        self.work.prepare(prioritised(self.schedule) if by_nodes else {})

    def within(self, gpu: Gpu, function: Callable[[int], None], handle: int) -> None:
        with current(self.driver, gpu.context):
            function(handle)

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
            if context not in self.joints:
                self.joints[context] = self.driver.create_event()
                self.resources.callback(self.driver.destroy_event, self.joints[context])
            self.driver.record(self.joints[context], before)
            self.driver.wait(after, self.joints[context])

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
