"""Schedule + machine profile -> the timeline of one replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.ir import HOST, Copy, Emit, Join, Schedule
from graphc.kernels.contract import Catalog
from graphc.machine import check_apart
from graphc.profiles import ProfileSpec
from graphc.simulation.demands import Demand, Demands, Links
from graphc.simulation.engine import Ran, Task, run
from graphc.simulation.orders import Orders, orders_of
from graphc.timeline import Slice, Source, Timeline


@dataclass(frozen=True, slots=True)
class Prediction:
    """A simulated replay, and what it was made of."""

    schedule: Schedule
    profile: ProfileSpec
    placed: Mapping[str, int]
    orders: Orders
    tasks: tuple[Task, ...]
    ran: tuple[Ran, ...]
    links: Links
    total_us: float  # of a replay, on the caller's stream
    launch_us: float  # of the host

    @property
    def timeline(self) -> Timeline:
        return Timeline(Source.SIMULATED, tuple(self.slices()), self.total_us, self.launch_us)

    def slices(self) -> list[Slice]:
        found = []
        for index, op in enumerate(self.orders.ops):
            ran, stream = self.ran[index], self.orders.streams[index]
            previous = self.orders.previous[index]
            free_us = self.ran[previous].stop_us if previous >= 0 else 0.0
            found.append(
                Slice(
                    op.name,
                    op.step,
                    op.piece.index,
                    stream,
                    op.device,
                    self.tasks[index].demand.engine,
                    ran.start_us,
                    ran.stop_us,
                    min(free_us, ran.start_us),
                    self.waited_for(index, stream),
                )
            )
        return found

    def waited_for(self, index: int, stream: str) -> tuple[str, ...]:
        ran, orders = self.ran, self.orders
        others = [each for each in orders.before[index] if orders.streams[each] != stream]
        others += orders.awaits[index]
        others.sort(key=lambda each: (-ran[each].stop_us, each))
        cause = ran[index].cause
        if cause >= 0 and orders.streams[cause] != stream:
            others = [cause, *(each for each in others if each != cause)]
        return tuple(orders.ops[each].name for each in others)


def predict(
    schedule: Schedule,
    profile: ProfileSpec,
    *,
    catalog: Catalog,
    placed: Mapping[str, int],
    count: int | None = None,
) -> Prediction:
    """Let a schedule run on a machine whose devices are ``placed`` on its GPUs.

    A ``UsageError`` if units share a GPU: no machine would launch that.
    """
    check_apart(schedule.units, placed, profile.gpus.count)
    orders, links = orders_of(schedule), Links.of(profile)
    demands = Demands(profile, schedule, placed, catalog, count)
    tasks = tuple(tasks_of(schedule, profile, orders, demands, placed))
    ran = tuple(run(tasks, profile, links))
    host_us = launch_us(schedule, profile, placed)
    stop_us = max((each.stop_us for each in ran), default=0.0)
    return Prediction(
        schedule, profile, placed, orders, tasks, ran, links, stop_us + ends_us(profile), host_us
    )


def tasks_of(
    schedule: Schedule,
    profile: ProfileSpec,
    orders: Orders,
    demands: Demands,
    placed: Mapping[str, int],
) -> list[Task]:
    numbers = {each.name: index for index, each in enumerate(schedule.streams)}
    priorities = {each.name: each.priority for each in schedule.streams}
    is_eager = schedule.emit is Emit.STREAMS
    begin_us = starts_us(profile)
    call_us = profile.overhead.call_us if is_eager else 0.0
    found = []
    for index, op in enumerate(orders.ops):
        stream = orders.streams[index]
        demand: Demand = demands.of(op)
        found.append(
            Task(
                demand,
                orders.before[index],
                numbers[stream],
                -1 if op.device == HOST else placed[op.device],
                priorities[stream],
                begin_us + call_us * orders.calls[index],
                orders.awaits[index],
            )
        )
    return found


def starts_us(profile: ProfileSpec) -> float:
    return profile.overhead.start_us / 2


def ends_us(profile: ProfileSpec) -> float:
    return profile.overhead.start_us / 2


def launch_us(schedule: Schedule, profile: ProfileSpec, placed: Mapping[str, int]) -> float:
    """What the launch costs the host; copies in a graph of several GPUs cost the most."""
    over, ops = profile.overhead, schedule.program.ops
    if schedule.emit is Emit.STREAMS:
        return over.call_us * len(schedule.instructions)
    found = 0.0
    for unit in schedule.parts:
        own = [op for op in ops if op.device in unit.devices and not isinstance(op.work, Join)]
        gpus = {placed[op.device] for op in own}
        copies = sum(isinstance(op.work, Copy) for op in own) if len(gpus) > 1 else 0
        found += over.launch_us + over.node_us * len(own) + over.copy_node_us * copies
    return found
