"""``graphc show``: stages as text, the schedule as a picture, what it uses."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.build import schedule_title
from graphc.cli.output import note, print_json, progress, say, write_text
from graphc.cli.request import ORIGIN, Request, is_plan, plan_of

if TYPE_CHECKING:
    from graphc.draw.resources import Resources
    from graphc.ir import Graph, Schedule
    from graphc.kernels.contract import Catalog
    from graphc.plan import Plan
    from graphc.routes import RouteSpec
    from graphc.spec.build import Built
    from graphc.text.words import Value

STAGES = ("program", "graph", "schedule", "memory", "kernels")


def run_show(
    wanted: Request,
    stage: str | None,
    *,
    entry: str | None,
    svg: Path | None,
    html: Path | None,
    has_resources: bool,
    is_json: bool,
) -> int:
    if stage is None and svg is None and html is None and not has_resources:
        stage = "schedule"
    seen = Seen(entry)
    with progress() as doing:
        doing(f"compiling {wanted.path}")
        shown = shown_of(wanted, entry, seen)
        if has_resources:
            doing("compiling it in one piece")
        single = one_piece(wanted, entry) if has_resources else []
    facts: dict[str, Any] = {"name": shown[0].schedule.program.name, "variants": []}
    for index, each in enumerate(shown):
        if len(shown) > 1 and not is_json and (stage or has_resources):
            say(f"=== {each.title}")
        told: dict[str, Any] = {"title": each.title, "entry": each.schedule.entry}
        if stage is not None:
            told["stages"] = tell_stages(each, stage, seen.graphs[index : index + 1], is_json)
        if has_resources:
            other = single[index] if index < len(single) else None
            told["resources"] = tell_resources(each.schedule, other, is_json)
        facts["variants"].append(told)
    if svg is not None:
        draw(shown[0], wanted, svg)
        facts["svg"] = str(svg)
        if not is_json:
            note(f"wrote {svg}" + (f" ({shown[0].title})" if len(shown) > 1 else ""))
    if html is not None:
        write_page(shown[0], wanted, html)
        facts["html"] = str(html)
        if not is_json:
            note(f"wrote {html}" + (f" ({shown[0].title})" if len(shown) > 1 else ""))
    if is_json:
        print_json(facts)
    return 0


class Shown:
    """One schedule to look at, and its plan if it has one (a hand-written one has not)."""

    def __init__(self, title: str, schedule: Schedule, plan: Plan | None) -> None:
        self.title, self.schedule, self.plan = title, schedule, plan


class Seen:
    """An observer that keeps the graphs: a plan holds their reduced edges only."""

    def __init__(self, entry: str | None) -> None:
        self.entry = entry
        self.graphs: list[Graph] = []

    def __call__(self, name: str, stage: object) -> None:
        if name == "plan_memory" and isinstance(stage, tuple):
            graph = stage[0]
            self.graphs += [graph] if self.entry in (None, graph.program.entry) else []


def shown_of(wanted: Request, entry: str | None, seen: Seen) -> list[Shown]:
    """The schedules of an entry, or of all: one for each choice of routes."""
    from graphc.backends.binding import check_entry

    handwritten = None if is_plan(wanted.path) else handwritten_schedule(wanted)
    if handwritten is not None:
        check_entry(entry, [handwritten.entry])
        return [Shown("hand-written", handwritten, None)]
    plan = plan_of(wanted, observe=seen, cubins=False)
    check_entry(entry, plan.variants[0].schedules)
    return [
        Shown(schedule_title(each, name), schedule, plan)
        for each in plan.variants
        for name, schedule in each.schedules.items()
        if entry in (None, name)
    ]


def handwritten_schedule(wanted: Request) -> Schedule | None:
    """The schedule as the author wrote it, proven or not: a picture helps to find the race."""
    built, _, _ = read_request(wanted)
    found: Schedule | None = built.schedule
    return found


def tell_stages(shown: Shown, stage: str, graphs: list[Graph], is_json: bool) -> dict[str, str]:
    from graphc.draw.dump import dump, dump_kernels, dump_memory

    schedule = shown.schedule
    makers = {
        "program": lambda: dump(schedule.program),
        "graph": lambda: dump(graphs[0] if graphs else graph_of(schedule)),
        "schedule": lambda: dump(schedule),
        "memory": lambda: dump_memory(schedule),
        "kernels": lambda: dump_kernels(shown.plan.images) if shown.plan else "no kernels\n",
    }
    texts = {name: makers[name]() for name in (STAGES if stage == "all" else (stage,))}
    if not is_json:
        for name, text in texts.items():
            if len(texts) > 1:
                say(f"--- {name}")
            say(text)
    return texts


def graph_of(schedule: Schedule) -> Graph:
    """Of a plan: the dependencies without those that follow from others, hazards not kept."""
    import networkx as nx

    from graphc.ir import Graph

    edges: nx.DiGraph[str] = nx.DiGraph()
    edges.add_nodes_from(op.name for op in schedule.program)
    edges.add_edges_from(schedule.edges)
    return Graph(schedule.program, edges)


def one_piece(wanted: Request, entry: str | None) -> list[Schedule]:
    """The same spec with all that is cut in one piece; none of a plan, which has lost its spec."""
    from graphc import api
    from graphc.spec.model import LayerSpec, load_spec

    if is_plan(wanted.path):
        return []
    spec = load_spec(wanted.path)
    if not isinstance(spec, LayerSpec):
        return []
    whole: dict[str, Value] = {f"schedule.cuts.{cut}": 1 for cut in spec.cuts}
    for op, placement in spec.schedule.placements.items():
        if placement.pieces is not None:
            whole[f"schedule.{op}.pieces"] = 1
    single = wanted.with_values(whole)
    found = api.check(single.path, **single.options())
    return [schedule for schedule, _ in found if entry in (None, schedule.entry)]


def read_request(wanted: Request) -> tuple[Built, Catalog, dict[str, RouteSpec]]:
    from graphc import api

    return api.read(
        wanted.path,
        wanted.preset,
        wanted.schedule,
        wanted.kernels,
        wanted.routes,
        wanted.values,
        origin=ORIGIN,
    )


def tell_resources(schedule: Schedule, single: Schedule | None, is_json: bool) -> dict[str, Any]:
    from graphc.draw.resources import resource_table, resources

    columns: dict[str, Resources] = {"this": resources(schedule)}
    if single is not None:
        columns["one piece"] = resources(single)
    if not is_json:
        say(resource_table(columns))
    return {name.replace(" ", "_"): asdict(used) for name, used in columns.items()}


def draw(shown: Shown, wanted: Request, path: Path) -> None:
    from graphc.draw.swimlanes import swimlanes

    durations = durations_of(shown.schedule, wanted)
    write_text(path, swimlanes(shown.schedule, title=title_of(shown), durations=durations))


def write_page(shown: Shown, wanted: Request, path: Path) -> None:
    from graphc.draw.look import plan_page

    phases = shown.plan.phases if shown.plan else {}
    durations = durations_of(shown.schedule, wanted)
    page = plan_page(shown.schedule, title=title_of(shown), phases=phases, durations=durations)
    write_text(path, page)


def title_of(shown: Shown) -> str:
    return f"{shown.schedule.program.name}: {shown.title}"


def durations_of(schedule: Schedule, wanted: Request) -> dict[str, float]:
    from graphc.draw.costs import kernel_durations
    from graphc.kernels.contract import Catalog
    from graphc.resources import kernel_folders

    return kernel_durations(schedule, Catalog(kernel_folders(wanted.kernels)))
