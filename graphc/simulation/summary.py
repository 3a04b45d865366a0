"""What a predicted replay says: how far it is from the least possible, what it waits for, and why.

Whatever the streams, the same ops take at least as long as the busiest resource with all its work
in a row, and as the longest path through their dependencies with every op alone. The larger of them
is the lower bound. What a schedule adds to it is waiting: see its critical path.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from graphc.profiles import at
from graphc.simulation.demands import Demand, Kind
from graphc.simulation.predict import Prediction

PATH = "longest path of dependencies"


@dataclass(frozen=True, slots=True)
class PathStep:
    """The pieces of one step on the critical path."""

    step: str
    engine: str
    pieces: int
    us: float  # of work
    before_us: float  # between the end of what came before and their start


@dataclass(frozen=True, slots=True)
class Summary:
    total_us: float
    lower_bound_us: float
    bound_by: str
    bounds_us: dict[str, float]  # resource -> its work in a row
    busy: dict[str, float]  # engine -> share of the time
    critical_path: tuple[PathStep, ...]
    launch_us: float


def summarize(found: Prediction) -> Summary:
    bounds = {**resources(found), PATH: longest_path(found)}
    bound_by = max(bounds, key=lambda name: bounds[name])
    return Summary(
        found.total_us,
        bounds[bound_by],
        bound_by,
        bounds,
        busy(found),
        tuple(critical_path(found)),
        found.launch_us,
    )


def resources(found: Prediction) -> dict[str, float]:
    """The work of each resource in a row: copies of an engine, bytes, multiprocessors held."""
    us: dict[str, float] = defaultdict(float)
    sms, memory = found.profile.gpus.sms, found.profile.memory
    names = gpu_names(found)
    for task in found.tasks:
        demand = task.demand
        if demand.kind is Kind.COPY:
            us[f"{names[demand.gpu]}: {demand.engine}"] += alone_us(demand, found)
        if demand.kind >= Kind.WIDE:
            held = alone_us(demand, found) * demand.sms if demand.kind is Kind.WIDE else 0.0
            # The fewer multiprocessors a narrow kernel has, the more each of them takes.
            narrow = sum(each for _, each in demand.memory) / (memory.one_sm_gb_s * 1e3)
            us[f"{names[demand.gpu]}: multiprocessors"] += (held or narrow) / sms
        for gpu, nbytes in demand.memory:
            us[f"{names[gpu]}: memory"] += nbytes / (memory.gb_s * 1e3)
        for flow in demand.flows:
            for link in flow.links:
                us[link_name(found, link, names)] += flow.nbytes / found.links.rates[link]
    return dict(us)


def link_name(found: Prediction, link: int, names: dict[int, str]) -> str:
    """The link by the names of devices: "primary to host"."""
    number, what = found.links.ends[link]
    return what.replace("GPU", names.get(number, f"GPU {number}"))


def gpu_names(found: Prediction) -> dict[int, str]:
    names: dict[int, str] = {}
    for device, gpu in found.placed.items():
        names[gpu] = f"{names[gpu]} and {device}" if gpu in names else device
    return names


def alone_us(demand: Demand, found: Prediction) -> float:
    """With the machine to itself."""
    profile = found.profile
    bandwidth = profile.memory.gb_s * 1e3
    if demand.kind >= Kind.WIDE:
        bandwidth = min(bandwidth, demand.sms * profile.memory.one_sm_gb_s * 1e3)
    resident = max(1.0, min(demand.blocks, demand.sms * demand.blocks_a_sm))
    times = [demand.compute_us, *(nbytes / bandwidth for _, nbytes in demand.memory)]
    for flow in demand.flows:
        links = (found.links.rates[link] for link in flow.links)
        times.append(flow.nbytes / min(1e3 * at(flow.rate, resident), *links))
    return demand.fixed_us + max(times)


def longest_path(found: Prediction) -> float:
    """By the true dependencies; a hand-written schedule has none but its streams and waits."""
    over, tasks, ops = found.profile.overhead, found.tasks, found.orders.ops
    before: list[list[int]] = [[] for _ in ops]
    number = {op.name: index for index, op in enumerate(ops)}
    for source, target in found.schedule.edges:
        before[number[target]].append(number[source])
    if found.schedule.is_handwritten:
        before = [list(each) for each in found.orders.before]
    stops = [0.0] * len(tasks)
    least = min(over.same_stream_us, over.same_gpu_us, over.across_gpus_us)
    for index in range(len(tasks)):
        start = max((stops[each] + least for each in before[index]), default=0.0)
        stops[index] = start + alone_us(tasks[index].demand, found)
    return max(stops, default=0.0) + found.profile.overhead.start_us


def busy(found: Prediction) -> dict[str, float]:
    """Of each engine, the share of the time in which it had anything to do."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for op, task, ran in zip(found.orders.ops, found.tasks, found.ran, strict=True):
        if task.demand.kind is not Kind.NONE:
            spans[f"{op.device} {task.demand.engine}"].append((ran.start_us, ran.stop_us))
    return {name: covered(own) / found.total_us for name, own in sorted(spans.items())}


def covered(spans: list[tuple[float, float]]) -> float:
    """
    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def critical_path(found: Prediction) -> list[PathStep]:
    """The critical ops by step, in the order of their first pieces."""
    steps: dict[str, PathStep] = {}
    stop_us = 0.0
    for index in critical_ops(found):
        op, ran = found.orders.ops[index], found.ran[index]
        known = steps.get(op.step, PathStep(op.step, found.tasks[index].demand.engine, 0, 0.0, 0.0))
        steps[op.step] = PathStep(
            op.step,
            known.engine,
            known.pieces + 1,
            known.us + ran.stop_us - max(ran.start_us, stop_us),
            known.before_us + max(0.0, ran.start_us - stop_us),
        )
        stop_us = ran.stop_us
    return list(steps.values())


def critical_ops(found: Prediction) -> list[int]:
    """From the end back to what let each op start, in order of time."""
    path = []
    index = max(range(len(found.ran)), key=lambda each: found.ran[each].stop_us, default=-1)
    while index >= 0:
        path.append(index)
        index = found.ran[index].cause
    return path[::-1]
