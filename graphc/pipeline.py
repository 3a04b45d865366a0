"""The passes in order, on one page: from a program with transfers to a proven schedule."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from graphc.ir import Program, Schedule, Settings
from graphc.kernels.contract import Catalog
from graphc.passes.assign_streams import assign_streams
from graphc.passes.choose_routes import choose_routes
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.insert_events import insert_events
from graphc.passes.lower_routes import lower_routes
from graphc.passes.plan_memory import plan_memory
from graphc.passes.split_pieces import split_pieces
from graphc.plan import Proof
from graphc.routes import RouteSpec
from graphc.verify import verify

Observer: TypeAlias = Callable[[str, object], None]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cycle collector from walking, again and again, objects that all stay alive."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def ignore(name: str, stage: object) -> None:
    """The observer that does nothing; others dump, time or check each stage."""


def schedule_program(
    program: Program,
    routes: Mapping[str, RouteSpec],
    catalog: Catalog,
    settings: Settings,
    *,
    auto: str,
    observe: Observer = ignore,
) -> tuple[Program, Schedule, Proof]:
    """The program with its routes chosen, its schedule, and the proof that nothing races."""
    chosen = choose_routes(program, routes, auto=auto)
    observe("choose_routes", chosen)
    lowered = lower_routes(chosen, routes, catalog)
    observe("lower_routes", lowered)
    pieces = split_pieces(lowered)
    observe("split_pieces", pieces)
    graph = infer_dependencies(pieces)
    observe("infer_dependencies", graph)
    graph, memory = plan_memory(graph, settings.memory)
    observe("plan_memory", (graph, memory))
    placed = assign_streams(graph, settings.max_streams)
    observe("assign_streams", placed)
    schedule = insert_events(placed, memory, settings.emit)
    observe("insert_events", schedule)
    proof = verify(schedule)
    observe("verify", proof)
    return chosen, schedule, proof
