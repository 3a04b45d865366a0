"""``graphc trace``: replays told op by op: by phases, as a trace file, as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.build import variant_title
from graphc.cli.output import columns, note, plural, print_json, progress, say, write_text
from graphc.cli.request import Request, plan_of, profile_of
from graphc.cli.weight import weigh
from graphc.text.diagnostics import UsageError
from graphc.text.units import us_text as us
from graphc.text.write import check_place

if TYPE_CHECKING:
    from graphc.plan import Plan
    from graphc.simulation.predict import Prediction
    from graphc.tracing.phases import PhaseTime
    from graphc.tracing.traced import Trace

MOST_CAUSES = 3  # of a wait that are printed
MOST_STRAYS = 5


@dataclass(frozen=True, slots=True)
class TraceOptions:
    by: str | None
    rounds: int
    machine: Path | None
    out: Path | None
    html: Path | None
    backend: str
    count: int | None
    seed: int
    is_json: bool


def run_trace(wanted: Request, options: TraceOptions) -> int:
    from graphc.tracing import way_named

    way_named(options.by)
    check_out(options.out)
    check_place(options.html)
    with progress() as doing:
        doing(f"compiling {wanted.path}")
        plan = plan_of(wanted, cubins=False)
        trace, prediction = traced(plan, wanted, options, doing)
    if options.out is not None:
        write_files(trace, options.out)
    if options.html is not None:
        from graphc.draw.look import trace_page

        page = trace_page(trace, title=title_of(trace), prediction=prediction)
        write_text(options.html, page)
    if options.is_json:
        print_json(facts(trace, options))
    else:
        tell(trace, options)
    return 0


def traced(
    plan: Plan, wanted: Request, options: TraceOptions, doing: Any
) -> tuple[Trace, Prediction | None]:
    from graphc import api
    from graphc.inputs import random_inputs
    from graphc.tracing import trace

    profile = None if options.machine is None else profile_of(wanted, options.machine)
    if options.backend == "reference" or (options.backend == "auto" and not api.has_gpu()):
        weigh(wanted, plan)
    doing("making it ready to launch")
    with closing(api.instantiate(plan, options.backend)) as graph:  # type: ignore[arg-type]
        prediction = None if profile is None else predicted(graph, wanted, profile, options.count)
        doing("making inputs")
        graph.bind(random_inputs(graph.program, seed=options.seed, count=options.count))
        doing(f"{options.rounds} replays")
        found = trace(
            graph,
            rounds=options.rounds,
            count=options.count,
            by=options.by,
            predicted=None if prediction is None else prediction.timeline,
        )
        return found, prediction


def predicted(graph: Any, wanted: Request, profile: Any, count: int | None) -> Prediction:
    """By the schedule that runs, whatever route it took."""
    from graphc.kernels.contract import Catalog
    from graphc.predict import placed_on
    from graphc.resources import kernel_folders
    from graphc.simulation.predict import predict

    return predict(
        graph.variant.schedule,
        profile,
        catalog=Catalog(kernel_folders(wanted.kernels)),
        placed=placed_on(graph.program, profile, None),
        count=graph.program.capacity if count is None else count,
    )


def check_out(out: Path | None) -> None:
    if out is not None and out.suffix == ".json" and out.is_dir():
        raise UsageError(f"--out: '{out}' is a folder, and no file can have its name")
    if out is not None and out.suffix != ".json" and out.is_file():
        raise UsageError(f"--out: '{out}' is a file: name a folder, or a file that ends in .json")
    if out is not None and out.suffix == ".json":
        check_place(out)


def write_files(trace: Trace, out: Path) -> None:
    if out.suffix == ".json":
        trace.save(out)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"--out: cannot make the folder '{out}': {problem.strerror}") from None
    trace.save(out / "trace.json")
    phases = [asdict(each) for each in trace.phases]
    write_text(
        out / "phases.json", json.dumps({**trace.facts(), "phases": phases}, indent=1) + "\n"
    )
    lines = (json.dumps(asdict(each) | {"error": each.error}) + "\n" for each in trace.ops)
    write_text(out / "ops.jsonl", "".join(lines))


def title_of(trace: Trace) -> str:
    return f"{trace.plan.name}: {variant_title(trace.variant)}, traced"


def facts(trace: Trace, options: TraceOptions) -> dict[str, Any]:
    return {
        **trace.facts(),
        "rounds": options.rounds,
        "count": options.count,
        "total_us": trace.total_us,
        "replays_us": [each.stop_us for each in trace.timelines],
        "phases": [asdict(each) for each in trace.phases],
        "ops": [asdict(each) | {"error": each.error} for each in trace.ops],
        "strays": [asdict(each) for each in trace.replay.strays],
        "out": None if options.out is None else str(options.out),
        "html": None if options.html is None else str(options.html),
    }


def tell(trace: Trace, options: TraceOptions) -> None:
    from graphc.draw.look import WAYS, trace_notes

    say(
        f"{trace.plan.name}: {variant_title(trace.variant)}, "
        f"{plural(len(trace.ops), 'op')}, {plural(len(trace.timelines), 'replay')}, "
        f"median {us(trace.total_us)}"
    )
    say(f"  {WAYS[trace.recording.way]}")
    for each in trace_notes(trace):
        say(f"  {each}")
    if trace.plan.phases:
        say("")
        say(columns(list(phase_rows(trace.phases))))
    else:
        say("  no phases: a spec may name groups of its ops under 'phases:'")
    if trace.predicted is not None:
        say("")
        say(columns(list(step_rows(trace))))
    tell_strays(trace)
    for path in (options.out, options.html):
        if path is not None:
            note(f"wrote {path}")


def phase_rows(phases: tuple[PhaseTime, ...]) -> Iterator[tuple[str, ...]]:
    yield "phase", "ops", "on the clock", "together", "waited", "of that for"
    for each in phases:
        causes = [(name, part) for name, part in each.waited_for.items() if part >= 0.05]
        told = ", ".join(f"{name} {us(part)}" for name, part in causes[:MOST_CAUSES])
        more = ", ..." if len(causes) > MOST_CAUSES else ""
        yield (
            each.phase, str(each.ops), us(each.clock_us), us(each.busy_us), us(each.waited_us),
            told + more,
        )  # fmt: skip


def step_rows(trace: Trace) -> Iterator[tuple[str, ...]]:
    """By step of all layers, the largest first; --json and --html have every op."""
    from graphc.draw.swimlanes import hue_key

    measured: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for each in trace.ops:
        if each.predicted_us is not None and each.engine != "none":
            step = hue_key(each.step)
            measured[step] = measured.get(step, 0.0) + each.us
            predicted[step] = predicted.get(step, 0.0) + each.predicted_us
    yield "step", "measured", "predicted", "error"
    for step in sorted(measured, key=lambda each: -measured[each]):
        error = predicted[step] / measured[step] - 1 if measured[step] > 0 else 0.0
        yield step, us(measured[step]), us(predicted[step]), f"{error:+.0%}"
    total = trace.predicted.stop_us if trace.predicted else 0.0
    yield "the whole", us(trace.total_us), us(total), f"{total / trace.total_us - 1:+.0%}"


def tell_strays(trace: Trace) -> None:
    strays = trace.replay.strays
    if not strays:
        return
    say("")
    say(f"{plural(len(strays), 'record')} of the replay belong to no op:")
    for each in strays[:MOST_STRAYS]:
        say(f"  {each.what} on GPU {each.device}, at {us(each.start_us)}: {each.why}")
    if len(strays) > MOST_STRAYS:
        say(f"  ... and {len(strays) - MOST_STRAYS} more: --json has all")
