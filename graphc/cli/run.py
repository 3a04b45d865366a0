"""``graphc run``: replay a plan on seeded inputs, compare schedules bit for bit, tell the times."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from graphc.cli.build import variant_title
from graphc.cli.output import (
    Progress,
    columns,
    note,
    plural,
    print_json,
    progress,
    say,
    write_text,
)
from graphc.cli.request import Request, assignment, is_plan, plan_of
from graphc.cli.weight import weigh
from graphc.text.diagnostics import UsageError
from graphc.text.units import us_text as us
from graphc.text.words import Value

if TYPE_CHECKING:
    from graphc.backends.cuda.timing import OpTime
    from graphc.bits import Difference
    from graphc.plan import Plan

DIFFERENT = 1  # the exit code when bits differ


@dataclass(frozen=True, slots=True)
class RunOptions:
    backend: str
    repeats: int
    count: int | None
    seed: int
    compare: tuple[str, ...]
    arrays: tuple[str, ...]
    null: tuple[str, ...]
    entries: tuple[str, ...]
    has_timings: bool
    svg: Path | None
    is_json: bool


@dataclass(frozen=True, slots=True)
class Ran:
    """What one schedule did."""

    plan: Plan
    title: str
    routes: dict[str, str]
    backend: str
    outputs: dict[str, Any]  # after the first replay, rows in use
    last: dict[str, Any]  # after the last one
    launch_us: list[float]  # host time of each launch
    replay_us: list[float]  # until the results were there
    gpu_us: list[float]  # of each replay by the GPU's own clock; none on the reference
    op_times: dict[str, OpTime]  # by op, where they were asked for
    schedule: Any
    entries: tuple[str, ...]  # what each replay launched, in order


@dataclass(frozen=True, slots=True)
class Compared:
    values: dict[str, Value]
    title: str
    differences: list[Difference]


def run_run(wanted: Request, options: RunOptions) -> int:
    others = [values_of(each) for each in options.compare]
    if others and is_plan(wanted.path):
        raise UsageError(f"'{wanted.path}' is a plan, compiled already: --compare needs the spec")
    with progress() as doing:
        inputs = Inputs(options)
        this = run_one(wanted, options, inputs, doing)
        compared = []
        for values in others:
            other = run_one(wanted.with_values(values), options, inputs, doing)
            compared.append(Compared(values, other.title, compare(this, other)))
    if options.svg is not None:
        draw(this, options.svg)
    is_equal = not any(each.differences for each in compared)
    if options.is_json:
        print_json(facts(this, compared, options))
    else:
        tell(this, compared, options)
    return 0 if is_equal else DIFFERENT


def values_of(words: str) -> dict[str, Value]:
    """
    >>> values_of("pieces=1,route=host")
    {'pieces': 1, 'route': 'host'}
    """
    import re

    # A comma parts two assignments only in front of a name and an equals sign: lists keep theirs.
    return dict(assignment(each) for each in re.split(r",(?=\s*[A-Za-z_][\w./]*\s*=)", words))


class Inputs:
    """The inputs of a run: those of files, the rest from the seed, but for what is to be null."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.files = dict(file_of(each) for each in options.arrays)

    def arrays(self, plan: Plan, schedule: Any) -> dict[str, Any]:
        from graphc.backends.binding import unknown_buffer
        from graphc.inputs import random_inputs

        program = schedule.program
        for name in self.files:
            if name not in program.buffers:
                raise unknown_buffer(name, program.buffers)
        made = random_inputs(
            program, seed=self.options.seed, count=self.options.count, null=self.options.null
        )
        for name in self.files:
            if program.buffers[name].is_optional and name not in made:
                raise UsageError(f"--input gives '{name}' an array, --null none: which?")
        return {**made, **{name: array.copy() for name, array in self.files.items()}}


def file_of(word: str) -> tuple[str, Any]:
    import numpy as np

    name, equals, file = word.partition("=")
    if not equals:
        raise UsageError(f"--input: expected name=file.npy, found '{word}'")
    try:
        return name, np.load(file, allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise UsageError(f"--input: cannot read '{file}' as a .npy file: {problem}") from None


def run_one(wanted: Request, options: RunOptions, inputs: Inputs, doing: Progress) -> Ran:
    from graphc import api
    from graphc.backends.binding import check_count

    doing(f"compiling {wanted.path}")
    # Kernels are compiled when the plan is instantiated, and only if a GPU is to run them.
    plan = plan_of(
        wanted, observe=lambda name, _: doing(f"compiling {wanted.path}: {name}"), cubins=False
    )
    check_count(plan.variants[0].schedule.program, options.count)
    if options.backend == "reference" or (options.backend == "auto" and not api.has_gpu()):
        weigh(wanted, plan)
    doing("making it ready to launch")
    with closing(api.instantiate(plan, options.backend)) as graph:  # type: ignore[arg-type]
        schedule = graph.variant.schedule
        doing("making inputs")
        arrays = inputs.arrays(plan, schedule)
        return replay(plan, graph, arrays, options, doing)


def replay(
    plan: Plan, graph: Any, arrays: dict[str, Any], options: RunOptions, doing: Progress
) -> Ran:
    graph.bind(arrays)
    entries = entries_of(plan, graph, options)
    launch_us, replay_us = [], []
    first: dict[str, Any] = {}
    for index in range(options.repeats):
        doing(f"replay {index + 1} of {options.repeats}")
        start = perf_counter()
        for entry in entries:
            graph.launch(count=options.count, entry=entry)
        issued = perf_counter()
        graph.synchronize()
        launch_us.append((issued - start) * 1e6)
        replay_us.append((perf_counter() - start) * 1e6)
        if index == 0:
            first = outputs(graph, options.count)
    last = first if options.repeats == 1 else outputs(graph, options.count)
    return Ran(
        plan,
        variant_title(graph.variant),
        dict(graph.variant.routes),
        backend_of(graph),
        first,
        last,
        launch_us,
        replay_us,
        gpu_times(graph, options),
        op_times(graph, options),
        graph.variant.schedule,
        entries,
    )


def entries_of(plan: Plan, graph: Any, options: RunOptions) -> tuple[str, ...]:
    """What a replay launches: the entries asked for, else the first behind those before it."""
    from graphc.backends.binding import check_entry

    asked = options.entries or plan.sequence or graph.entries[:1]
    return tuple(check_entry(each, graph.entries) for each in asked)


def backend_of(graph: Any) -> str:
    from graphc.backends.reference import ReferenceGraph

    return "reference" if isinstance(graph, ReferenceGraph) else "cuda"


def outputs(graph: Any, count: int | None) -> dict[str, Any]:
    """Copies of what the caller gets, rows in use only."""
    import numpy as np

    from graphc.bits import output_buffers, rows_in_use

    return {
        buffer.name: np.array(rows_in_use(buffer, np.asarray(graph[buffer.name]), count))
        for buffer in output_buffers(graph.program)
    }


def gpu_times(graph: Any, options: RunOptions) -> list[float]:
    """Replays of their own, after the outputs were taken."""
    if backend_of(graph) != "cuda" or not (options.has_timings or options.repeats > 1):
        return []
    return list(graph.time_replays(rounds=max(options.repeats, 5), count=options.count))


def op_times(graph: Any, options: RunOptions) -> dict[str, OpTime]:
    """Each op on its stream; the time of a reference on the host says nothing about a kernel."""
    if backend_of(graph) != "cuda" or not (options.has_timings or options.svg):
        return {}
    return {each.op: each for each in graph.time_ops(count=options.count)}


def compare(this: Ran, other: Ran) -> list[Difference]:
    from graphc.bits import differences

    found = differences(this.outputs, other.outputs)
    return found or differences(this.last, other.last)


def draw(ran: Ran, path: Path) -> None:
    from graphc.draw.costs import kernel_durations
    from graphc.draw.swimlanes import swimlanes
    from graphc.kernels.contract import Catalog
    from graphc.resources import kernel_folders

    title = f"{ran.plan.name}: {ran.title}, {ran.backend}"
    durations = {name: each.us for name, each in ran.op_times.items()}
    basis = "each op as long as it took, laid out by its waits" if durations else None
    durations = durations or kernel_durations(ran.schedule, Catalog(kernel_folders()))
    write_text(path, swimlanes(ran.schedule, title=title, durations=durations, basis=basis))


def facts(this: Ran, compared: Sequence[Compared], options: RunOptions) -> dict[str, Any]:
    from dataclasses import asdict

    from graphc.bits import digest

    found: dict[str, Any] = {
        "ok": not any(each.differences for each in compared),
        "name": this.plan.name,
        "backend": this.backend,
        "routes": this.routes,
        "params": dict(this.plan.params),
        "seed": options.seed,
        "null": list(options.null),
        "count": options.count,
        "repeats": options.repeats,
        "entries": list(this.entries),
        "ops": sum(len(schedule.program.ops) for schedule in schedules_of(this)),
        "outputs": {
            name: {"dtype": str(each.dtype), "shape": list(each.shape), "digest": digest(each)}
            for name, each in this.last.items()
        },
        "launch_us": summary(this.launch_us),
        "replay_us": summary(this.replay_us),
        "compare": [
            {
                "values": each.values,
                "title": each.title,
                "equal": not each.differences,
                "differences": [asdict(one) for one in each.differences],
            }
            for each in compared
        ],
    }
    if this.gpu_us:
        found["gpu_us"] = summary(this.gpu_us)
    if this.op_times:
        found["step_us"], found["waited_us"] = step_times(this)
    return found


def schedules_of(ran: Ran) -> list[Any]:
    variants = [each for each in ran.plan.variants if each.schedule is ran.schedule]
    known = variants[0].schedules if variants else {ran.schedule.entry: ran.schedule}
    return [known[entry] for entry in ran.entries]


def summary(times: Sequence[float]) -> dict[str, float]:
    """The first replay pays for what comes once: it is left out where there are others."""
    rest = times[1:] or times
    return {"first": times[0], "min": min(rest), "median": median(rest), "max": max(rest)}


def step_times(ran: Ran) -> tuple[dict[str, float], dict[str, float]]:
    """By step, all its pieces together: their time, and how long their stream waited for them."""
    took: dict[str, float] = {}
    waited: dict[str, float] = {}
    for op in ran.schedule.program:
        if op.name in ran.op_times:
            times = ran.op_times[op.name]
            took[op.step] = took.get(op.step, 0.0) + times.us
            waited[op.step] = waited.get(op.step, 0.0) + (times.waited_us or 0.0)
    return took, waited


def tell(this: Ran, compared: Sequence[Compared], options: RunOptions) -> None:
    from graphc.bits import digest

    say(
        f"{this.plan.name}: {this.title} on {this.backend}, "
        f"{plural(sum(len(each.program.ops) for each in schedules_of(this)), 'op')}, "
        f"{plural(options.repeats, 'replay')}"
        + (f" of {', '.join(this.entries)}" if len(this.entries) > 1 else "")
    )
    for name, array in this.last.items():
        say(f"  {name}: {array.dtype}{list(array.shape)}, bits {digest(array)}")
    tell_times(this, options)
    for each in compared:
        values = ", ".join(f"{name}={value}" for name, value in each.values.items())
        if not each.differences:
            say(f"  the same bits as with {values} ({each.title})")
        for one in each.differences:
            note(f"error[different-bits]: with {values} ({each.title}): {one}")
    if options.svg is not None:
        note(f"wrote {options.svg}")


def tell_times(ran: Ran, options: RunOptions) -> None:
    replays, launches = summary(ran.replay_us), summary(ran.launch_us)
    which = "median" if options.repeats > 1 else "first"
    said = f"  replay: {us(replays[which])} ({which}, by the host)"
    if ran.backend == "cuda":
        said += f"; launch: {us(launches[which])} of the host"
    if ran.gpu_us:
        said += f"; GPU: {us(summary(ran.gpu_us)['median'])} (median)"
    say(said)
    if not options.has_timings:
        return
    if not ran.op_times:
        say("  times by step need a GPU: those of the references say nothing about kernels")
        return
    took, waited = step_times(ran)
    rows = [("step", "time", "stream waited before it")]
    rows += [(step, us(took[step]), us(waited[step])) for step in took]
    say(columns(rows))
