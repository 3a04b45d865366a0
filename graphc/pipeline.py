"""The passes in order, on one page: from a program with transfers to a proven schedule."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

from graphc.ir import (
    Allocation,
    Emit,
    LaunchContract,
    Memory,
    Program,
    Schedule,
    Settings,
)
from graphc.kernels.contract import Catalog
from graphc.passes.assign_streams import assign_streams
from graphc.passes.choose_routes import choose_routes
from graphc.passes.divide import divide
from graphc.passes.find_handshakes import find_handshakes
from graphc.passes.find_units import find_units
from graphc.passes.infer_dependencies import infer_dependencies
from graphc.passes.insert_events import insert_events
from graphc.passes.lower_routes import lower_routes
from graphc.passes.plan_memory import plan_memory
from graphc.passes.split_pieces import split_pieces
from graphc.plan import Proof
from graphc.routes import RouteSpec
from graphc.text.diagnostics import CompilerBug, GraphcError
from graphc.verify import verify as verify_order

Stage = TypeVar("Stage")
Result = TypeVar("Result")
Rest = ParamSpec("Rest")
Observer: TypeAlias = Callable[[str, object], None]
Dumper: TypeAlias = Callable[[str, object], str | None]


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


def no_dump(name: str, stage: object) -> None:
    """The dumper that writes nothing; others write the stage to a file and name it."""


@dataclass(frozen=True, slots=True)
class Run:
    """Calls passes: tells the observer of what each gave, and dumps what a broken one was given."""

    observe: Observer
    dump: Dumper

    def __call__(
        self,
        function: Callable[Concatenate[Stage, Rest], Result],
        stage: Stage,
        *args: Rest.args,
        **options: Rest.kwargs,
    ) -> Result:
        name = getattr(function, "__name__", "pass")
        try:
            result = function(stage, *args, **options)
        except CompilerBug as bug:
            raise CompilerBug(
                bug.pass_name, bug.message, dump=bug.dump or self.dump(name, stage)
            ) from bug
        except GraphcError:
            raise
        except Exception as problem:  # whatever else leaves a pass is a fault of ours
            what = f"{type(problem).__name__}: {problem}"
            raise CompilerBug(name, what, dump=self.dump(name, stage)) from problem
        self.observe(name, result)
        return result


def schedule_programs(
    programs: Sequence[Program],
    routes: Mapping[str, RouteSpec],
    catalog: Catalog,
    settings: Settings,
    *,
    auto: str,
    observe: Observer = ignore,
    dump: Dumper = no_dump,
) -> tuple[tuple[Program, ...], tuple[Schedule, ...], Proof]:
    """The programs of all entries with routes chosen, their schedules, and one proof of all."""
    run = Run(observe, dump)
    chosen, divided, memories = [], [], []
    for program in programs:
        chosen.append(run(choose_routes, program, routes, auto=auto))
        lowered = run(lower_routes, chosen[-1], routes, catalog)
        pieces = run(split_pieces, lowered)
        graph = run(infer_dependencies, pieces)
        units = find_units(graph.program, settings.units)
        graph, memory = run(plan_memory, graph, settings.memory, units)
        placed = run(assign_streams, graph, settings.max_streams)
        divided.append(run(divide, placed, units, settings) if units else placed)
        memories.append(memory)
    if len(programs) > 1:
        memories = share_arenas(memories)
    entries = tuple(divided)
    if settings.launch is LaunchContract.FREE:
        entries = run(find_handshakes, entries, memories, settings)
    schedules = tuple(
        run(insert_events, placed, memory, settings)
        for placed, memory in zip(entries, memories, strict=True)
    )
    return tuple(chosen), schedules, run(verify, schedules)


def share_arenas(memories: Sequence[Memory]) -> list[Memory]:
    """The layouts with each allocation as large as any entry needs it: all entries share them."""
    largest: dict[str, Allocation] = {}
    for each in (each for memory in memories for each in memory.allocations):
        if each.name not in largest or largest[each.name].nbytes < each.nbytes:
            largest[each.name] = each
    return [
        replace(memory, allocations=tuple(largest[each.name] for each in memory.allocations))
        for memory in memories
    ]


def verify(schedules: Schedule | Sequence[Schedule]) -> Proof:
    """Prove the streams of all entries and, where the edges are what is built, these, too."""
    every = (schedules,) if isinstance(schedules, Schedule) else tuple(schedules)
    proof = verify_order(every)
    if any(schedule.emit is Emit.NODES for schedule in every):
        verify_order(every, order="edges")
    return proof
