"""The real timeline of a replay, every op under its spec's name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from graphc.backends.recording import Way
from graphc.plan import Backend, Plan
from graphc.text.diagnostics import UsageError
from graphc.text.suggest import did_you_mean
from graphc.timeline import Timeline
from graphc.tracing.traced import OpTrace, Trace, trace_of

__all__ = ["OpTrace", "Trace", "trace"]


def trace(
    source: Any,
    /,
    arrays: Mapping[str, Any] | None = None,
    *,
    rounds: int = 20,
    count: int | None = None,
    by: str | None = None,
    predicted: Timeline | None = None,
    backend: Backend = "auto",
    seed: int = 0,
) -> Trace:
    """Replay a plan, or a graph that is bound, some times, and tell when each op ran.

    ``by``: "cupti" (records of every node), "events" (around every op); None: the best at hand.
    The reference backend is timed by the host's clock, which says nothing about kernels. A plan
    is instantiated for this and given ``arrays``, and seeded inputs for what is not among them; a
    graph is used as it is. ``predicted`` is a timeline to set beside it (``graphc.simulate``).
    """
    way = way_named(by)
    if not isinstance(source, Plan):
        if not hasattr(source, "record") or not hasattr(source, "variant"):
            raise UsageError(f"trace: expected a plan, or a graph of one, found {source!r}")
        if arrays:
            source.bind(arrays)
        found = source.record(rounds, count, way=way)
        return trace_of(source.plan, source.variant, found, predicted)
    with closing(source.instantiate(backend)) as graph:
        graph.bind({**inputs_of(graph, seed, count), **(arrays or {})})
        found = graph.record(rounds, count, way=way)
        return trace_of(source, graph.variant, found, predicted)


def inputs_of(graph: Any, seed: int, count: int | None) -> Mapping[str, Any]:
    from graphc.inputs import random_inputs

    return random_inputs(graph.program, seed=seed, count=count)


def way_named(by: str | None) -> Way | None:
    known = {each.value: each for each in (Way.CUPTI, Way.EVENTS)}
    if by is None:
        return None
    if by not in known:
        hint = did_you_mean(str(by), known) or f"there are {', '.join(known)}"
        raise UsageError(f"by: there is no way '{by}' to trace: {hint}")
    return known[by]
