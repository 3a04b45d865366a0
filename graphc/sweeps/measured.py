"""Candidates as they run: on GPUs, or on the reference for tests of all that is around them.

The baseline is compiled and run once, and its graph stays. Whatever the caller fills lies in its
buffers, and every candidate is bound to these: gigabytes of weights are loaded once. Before a
candidate is timed its scratch is poisoned, what plans write is as it was, and the outputs of one
replay must have the bits of the baseline's. Then both are replayed in alternating rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphc.api import compile as compile_spec
from graphc.api import instantiate
from graphc.backends.binding import written_buffers
from graphc.backends.reference import ReferenceGraph
from graphc.bits import differences, output_buffers
from graphc.inputs import filled_buffers, random_inputs
from graphc.ir import Buffer
from graphc.sweeps.job import Job, named
from graphc.sweeps.rows import Basis, Outcome, Status
from graphc.text.diagnostics import CudaError, GraphcError, UsageError
from graphc.text.words import Value

Graph: TypeAlias = Any  # of either backend: they have one surface
Arrays = dict[str, NDArray[Any]]
EVALUATOR = "graphc.sweeps.measured:Measured"
LAUNCHES = 9  # of which the host's time is taken


class Measured:
    """An evaluator: see ``graphc.sweeps.job``."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rounds, self.replays = int(job.settings["rounds"]), int(job.settings["replays"])
        self.graph = self.made(job.baseline)
        self.basis = Basis.WALL if is_reference(self.graph) else Basis.MEASURED
        self.graph.bind(self.inputs())
        self.filled = self.brought(self.graph)
        written = written_buffers(self.graph.program)
        self.fresh = {name: copied(self.graph, name) for name in self.filled if name in written}
        self.expected = self.run(self.graph)
        own = [self.took_us(self.graph) for _ in range(self.rounds)]
        us = median(own)
        self.baseline = Outcome(
            Status.OK,
            self.basis,
            us=us,
            relative=1.0,
            params=self.graph.plan.params,
            facts={**self.facts(self.graph), "rounds_us": own, "spread": spread(own)},
        )

    def made(self, values: Mapping[str, Value]) -> Graph:
        plan = compile_spec(self.job.path, cubins=False, **self.job.options(values))
        return instantiate(
            plan, self.job.settings["backend"], devices=self.job.settings.get("devices")
        )

    def inputs(self) -> Mapping[str, Any]:
        own = self.job.settings.get("inputs")
        if own is None:
            return random_inputs(self.graph.program, seed=int(self.job.settings["seed"]))
        function = named(own, "the function of the inputs")
        try:
            found: Mapping[str, Any] = function(self.graph)
        except GraphcError:
            raise
        except Exception as problem:  # whatever a function of the author's may raise
            what = f"{type(problem).__name__}: {problem}"
            raise UsageError(f"the function of the inputs '{own}' failed: {what}") from problem
        if not isinstance(found, Mapping):
            kind = type(found).__name__
            raise UsageError(
                f"the function of the inputs '{own}' gives arrays by buffer, not {kind}"
            )
        return found

    def evaluate(self, values: Mapping[str, Value]) -> Outcome:
        with self.opened(values) as graph:
            params = graph.plan.params
            if (what := self.misfit(graph)) is not None:
                return Outcome(Status.REFUSED, self.basis, what, params=params)
            graph.bind({name: self.graph[name] for name in self.filled})
            found = differences(self.run(graph), self.expected)
            if found:
                more = f" (and {len(found) - 1} more outputs)" if len(found) > 1 else ""
                reason = f"{found[0]}{more}"
                return Outcome(Status.DIFFERENT, self.basis, reason, params=params)
            return self.timed(graph)

    @contextmanager
    def opened(self, values: Mapping[str, Value]) -> Iterator[Graph]:
        graph = self.made(values)
        try:
            yield graph
        except GraphcError:
            with suppress(GraphcError):  # the first fault is the one to be told
                graph.close()
            raise
        graph.close()

    def brought(self, graph: Graph) -> dict[str, Buffer]:
        """What the caller fills of a graph, as far as the baseline is bound to it."""
        return {
            each.name: each
            for each in filled_buffers(graph.program)
            if not each.is_optional or is_bound(self.graph, each.name)
        }

    def misfit(self, graph: Graph) -> str | None:
        """What the candidate is bound with, or leaves, that the baseline does not have alike."""
        own = self.brought(graph)
        own |= {each.name: each for each in output_buffers(graph.program)}
        base = {**self.filled, **{each.name: each for each in output_buffers(self.graph.program)}}
        for name in {**own, **base}:
            if name not in own or name not in base:
                return f"only one of it and the baseline has '{name}'"
            if shape_of(own[name]) != shape_of(base[name]):
                return (
                    f"'{name}' is {shape_of(own[name])} here and {shape_of(base[name])} in the "
                    "baseline: only schedules of the same shapes are compared"
                )
        return None

    def run(self, graph: Graph) -> Arrays:
        """What one replay leaves, of inputs as they were at first."""
        self.refresh()
        graph.poison()
        for entry in graph.plan.sequence or graph.entries[:1]:
            graph.launch(entry=entry)
        graph.synchronize()
        return {each.name: copied(graph, each.name) for each in output_buffers(graph.program)}

    def refresh(self) -> None:
        """Put back what replays write over; all graphs share these buffers."""
        for name, array in self.fresh.items():
            place = self.graph[name]
            if isinstance(place, np.ndarray):
                place[...] = array
            else:
                place.write(array)

    def timed(self, graph: Graph) -> Outcome:
        base: list[float] = []
        own: list[float] = []
        for number in range(self.rounds):
            pair = ((self.graph, base), (graph, own))
            for each, times in pair if number % 2 == 0 else reversed(pair):
                times.append(self.took_us(each))
        ratios = [mine / other for mine, other in zip(own, base, strict=True)]
        return Outcome(
            Status.OK,
            self.basis,
            us=median(own),
            relative=median(ratios),
            params=graph.plan.params,
            facts={
                **self.facts(graph),
                **self.steps(graph),
                "baseline_us": median(base),
                "wins": sum(each < 1 for each in ratios),
                "rounds": self.rounds,
                "spread": spread(own),
                "rounds_us": own,
                "baseline_rounds_us": base,
            },
        )

    def took_us(self, graph: Graph) -> float:
        """One round: the median of a few replays, after one that is not counted."""
        if not is_reference(graph):
            return float(median(graph.time_replays(self.replays)))
        times = []
        for _ in range(self.replays):
            start = perf_counter()
            graph.launch()
            graph.synchronize()
            times.append((perf_counter() - start) * 1e6)
        return median(times)

    def facts(self, graph: Graph) -> dict[str, Any]:
        variant = graph.variant
        return {
            "routes": sorted(set(variant.routes.values())),
            "ops": variant.proof.ops,
            "proven_pairs": variant.proof.pairs,
            "launch_us": None if is_reference(graph) else launch_us(graph),
        }

    def steps(self, graph: Graph) -> dict[str, Any]:
        """Each step's time and its wait before it, summed over its pieces, where that is asked."""
        rounds = int(self.job.settings.get("steps", 0))
        if not rounds or is_reference(graph):
            return {}
        step_of = {op.name: op.step for op in graph.program}
        took: dict[str, float] = {}
        waited: dict[str, float] = {}
        for each in graph.time_ops(rounds):
            step = step_of[each.op]
            took[step] = took.get(step, 0.0) + each.us
            waited[step] = waited.get(step, 0.0) + (each.waited_us or 0.0)
        return {"step_us": took, "waited_us": waited}

    def is_sound(self) -> bool:
        """Whether the baseline still runs here and leaves its bits: after a fault it may not."""
        try:
            return not differences(self.run(self.graph), self.expected)
        except GraphcError:
            return False

    def close(self) -> None:
        self.graph.close()


def is_bound(graph: Graph, name: str) -> bool:
    """Whether an optional buffer is there, and something is bound to it."""
    try:
        graph[name]
    except UsageError:
        return False
    return True


def is_reference(graph: Graph) -> bool:
    return isinstance(graph, ReferenceGraph)


def copied(graph: Graph, name: str) -> NDArray[Any]:
    found = graph[name]
    return found.copy() if isinstance(found, np.ndarray) else np.asarray(found)


def shape_of(buffer: Buffer) -> str:
    return f"{buffer.dtype}{list(buffer.shape)} on '{buffer.device}'"


def spread(times: Sequence[float]) -> float:
    """From the fastest round to the slowest, as a share of the median."""
    return (max(times) - min(times)) / median(times)


def launch_us(graph: Graph) -> float:
    """The host's time of a launch, of an idle stream: the median of a few."""
    times = []
    for _ in range(LAUNCHES):
        graph.synchronize()
        start = perf_counter()
        graph.launch()
        times.append((perf_counter() - start) * 1e6)
    graph.synchronize()
    return median(times)


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings and the GPUs: rows of one kind of machine say nothing about another."""
    from graphc.api import has_gpu
    from graphc.gpu import open_driver

    for name in ("rounds", "replays"):
        if not isinstance(settings[name], int) or settings[name] < 1:
            raise UsageError(f"'{name}' is a whole number from 1 on, not {settings[name]!r}")
    if settings["backend"] != "reference" and not has_gpu():
        raise CudaError(
            "sweep",
            "NO_DEVICE",
            "a sweep replays every candidate, and there is no GPU here",
            hint="--simulate MACHINE predicts without one (machine= in Python); "
            "--backend reference tries a sweep out, by the host's clock",
        )
    if settings["backend"] == "reference":
        return dict(settings)
    driver = open_driver()
    return {**settings, "gpus": [driver.device(at).name for at in range(driver.device_count())]}
