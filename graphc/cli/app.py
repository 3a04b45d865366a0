"""The commands, their options and their help; what they do is in the file of each."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from graphc import __version__
from graphc.cli.output import print_json
from graphc.cli.request import one_entry, request
from graphc.text.diagnostics import UsageError

app = typer.Typer(
    name="graphc",
    help="Compile a layer whose kernels and transfers span devices and streams to CUDA Graphs, "
    "and prove that no two conflicting accesses are unordered.\n\n"
    "\b\nStart here:\n"
    "  graphc doctor                                        what this machine can do\n"
    "  graphc check moe_peer                                is it free of races?\n"
    "  graphc run moe_peer --preset small                   run it\n"
    "  graphc show moe_peer --preset small --svg layer.svg  look at it\n\n"
    "moe_peer is a spec that came with graphc; a file of your own goes by its path.",
    epilog="Exit codes: 0 ok, 1 the spec is wrong, 2 usage, 3 CUDA or the machine, 70 a bug of "
    "graphc.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class Stage(StrEnum):
    PROGRAM = "program"
    GRAPH = "graph"
    SCHEDULE = "schedule"
    MEMORY = "memory"
    KERNELS = "kernels"
    ALL = "all"


class BackendName(StrEnum):
    AUTO = "auto"
    REFERENCE = "reference"
    CUDA = "cuda"


Spec = Annotated[
    Path, typer.Argument(metavar="FILE", help="A spec (YAML), or the name of a shipped one.")
]
SpecOrPlan = Annotated[
    Path, typer.Argument(metavar="FILE", help="A spec (YAML), or a plan that 'compile' wrote.")
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Give a param of the spec a value, or a value of its schedule by path "
        "(schedule.sums.pieces=4). Repeatable.",
    ),
]
Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help="Take one of the spec's presets first.")
]
ScheduleFile = Annotated[
    Path | None,
    typer.Option("--schedule", metavar="FILE", help="Replace the spec's schedule by this file's."),
]
Kernels = Annotated[
    list[Path] | None,
    typer.Option(metavar="FOLDER", help="Look here for kernel templates first. Repeatable."),
]
Routes = Annotated[
    list[Path] | None,
    typer.Option(metavar="FOLDER", help="Look here for route files first. Repeatable."),
]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a page to look at it in a browser; it is one file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    is_json: Annotated[
        bool, typer.Option("--json", help="With --version: print one JSON object instead of text.")
    ] = False,
) -> None:
    if version:
        if is_json:
            print_json({"graphc": __version__})
        else:
            print(f"graphc {__version__}")
        raise typer.Exit
    if is_json:
        raise UsageError("--json goes behind the command: graphc check FILE --json")
    if context.invoked_subcommand is None:
        raise UsageError("name a command: see 'graphc --help'")


@app.command()
def check(
    file: Spec,
    values: Values = None,
    preset: Preset = None,
    schedule: ScheduleFile = None,
    kernels: Kernels = None,
    routes: Routes = None,
    is_json: Json = False,
) -> int:
    """Prove that a spec's schedule has no race, or name the race.

    Ends with 0 and one line that says what was compared, or with 1 and the two ops, the bytes
    and the lines of the file. Hand-written schedules are checked as they are; a wait that orders
    nothing is noted.

    \b
    Examples:
      graphc check moe_peer
      graphc check moe_peer --preset small --set pieces=16 --set route=host
      graphc check hand/peer_pieces --json
    """
    from graphc.cli.check import run_check

    wanted = request(
        file, values=values, preset=preset, schedule=schedule, kernels=kernels, routes=routes
    )
    return run_check(wanted, is_json=is_json)


@app.command(name="compile")
def compile_command(
    file: Spec,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PLAN", help="Where to write the plan.")
    ] = None,
    values: Values = None,
    preset: Preset = None,
    schedule: ScheduleFile = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="ARCH",
            help="Architecture to compile kernels for, such as sm_90a: that of the GPU here, "
            "or sm_90a.",
        ),
    ] = None,
    cubins: Annotated[
        bool,
        typer.Option(
            "--cubins/--no-cubins",
            help="Compile the kernels now, or leave it to the machine that runs the plan.",
        ),
    ] = True,
    dump_after: Annotated[
        str | None,
        typer.Option(metavar="PASS", help="Print the stage that this pass made ('list': which)."),
    ] = None,
    kernels: Kernels = None,
    routes: Routes = None,
    is_json: Json = False,
) -> int:
    """Write the plan of a spec: schedules, proven, and kernels.

    A plan is a readable file that 'run' and graphc.load take, here or on another machine.
    An existing plan is replaced when the new one is complete, never before. Without -o the plan
    is named after the spec and put into the working folder.

    \b
    Examples:
      graphc compile moe_peer -o moe.graphc
      graphc compile moe_peer --set route=p2p --set pieces=8 -o p2p.graphc
      graphc compile moe_peer --preset small --dump-after infer_dependencies
    """
    from graphc.cli.build import run_compile

    wanted = request(
        file, values=values, preset=preset, schedule=schedule, kernels=kernels, routes=routes
    )
    return run_compile(
        wanted, output, arch=arch, cubins=cubins, dump_after=dump_after, is_json=is_json
    )


@app.command()
def show(
    file: SpecOrPlan,
    stage: Annotated[
        Stage | None, typer.Option(help="Print this stage as text (schedule if nothing is asked).")
    ] = None,
    entry: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Show this entry only. If absent: all as text, the first as a picture.",
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the schedule: a lane a stream, waits as arrows."),
    ] = None,
    html: Html = None,
    resources: Annotated[
        bool, typer.Option("--resources", help="Print what it uses, beside the same in one piece.")
    ] = False,
    values: Values = None,
    preset: Preset = None,
    schedule: ScheduleFile = None,
    kernels: Kernels = None,
    routes: Routes = None,
    is_json: Json = False,
) -> int:
    """Show any stage as text, or draw the schedule.

    \b
    Examples:
      graphc show moe_peer --preset small
      graphc show moe_peer --preset small --stage graph
      graphc show moe.graphc --svg moe.svg --resources
      graphc show ep_throughput --preset small --set prepare=explicit --entry prepare
      graphc show moe_peer --set route=host --html moe.html
    """
    from graphc.cli.show import run_show

    wanted = request(
        file, values=values, preset=preset, schedule=schedule, kernels=kernels, routes=routes
    )
    return run_show(
        wanted,
        stage.value if stage else None,
        entry=one_entry(entry),
        svg=svg,
        html=html,
        has_resources=resources,
        is_json=is_json,
    )


@app.command()
def run(
    file: SpecOrPlan,
    backend: Annotated[
        BackendName, typer.Option(help="Where to run it; auto: on the GPUs if there are any.")
    ] = BackendName.AUTO,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Replays.")] = 1,
    count: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Rows in use, at most the capacity; all if absent."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the random inputs.")] = 0,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Run another schedule, too, with this value (or several, with commas between), "
            "and demand the same bits of every output. Repeatable: one more schedule each.",
        ),
    ] = None,
    arrays: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=FILE", help="Take an input from a .npy file. Repeatable."
        ),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Leave an optional input unbound, of all ranks and iterations if it names none. "
            "Repeatable.",
        ),
    ] = None,
    entries: Annotated[
        list[str] | None,
        typer.Option(
            "--entry",
            metavar="NAME",
            help="Launch this entry. Repeatable: in this order, each replay. If absent: the first "
            "entry of the spec, behind those that come before it.",
        ),
    ] = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print the time of every step.")
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the schedule, as measured where that is possible."),
    ] = None,
    values: Values = None,
    preset: Preset = None,
    schedule: ScheduleFile = None,
    kernels: Kernels = None,
    routes: Routes = None,
    is_json: Json = False,
) -> int:
    """Run it on random inputs; compare schedules bit for bit.

    Inputs, optional ones too, follow from --seed and the names of the buffers alone: floats that
    are distinct in every element as far as their type can tell that many apart, weights scaled
    down by their width, integers a permutation of 0, 1, 2, ...; rows that --count leaves unused
    are poison.

    \b
    Examples:
      graphc run moe_peer --preset small
      graphc run moe_peer --preset small --backend reference \\
          --set route=p2p --set pieces=3 --compare pieces=1
      graphc run moe.graphc --backend cuda --repeats 100 --timings --svg measured.svg
    """
    from graphc.cli.run import RunOptions, run_run

    wanted = request(
        file, values=values, preset=preset, schedule=schedule, kernels=kernels, routes=routes
    )
    options = RunOptions(
        backend=backend.value,
        repeats=repeats,
        count=count,
        seed=seed,
        compare=tuple(compare or ()),
        arrays=tuple(arrays or ()),
        null=tuple(null or ()),
        entries=tuple(entries or ()),
        has_timings=timings,
        svg=svg,
        is_json=is_json,
    )
    return run_run(wanted, options)


@app.command()
def sweep(
    file: Spec,
    axes: Annotated[
        list[str],
        typer.Option(
            "--axis",
            metavar="NAME=VALUES",
            help="Vary a param, or a value of the schedule by path: a list (a,b,c), numbers from "
            "1 to 64 (1:64), every fourth (1:64:4), doubling (1:64:x2), shares ([1/4, 3/4]). "
            "Repeatable: all combinations.",
        ),
    ],
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Keep only candidates for which this holds: 'pieces >= compute'. Repeatable.",
        ),
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="Predict times by a machine profile, a file or a shipped one: needs no GPU.",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What candidates are compared with: the spec with this value. Repeatable.",
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="grid: all candidates; or random, tpe, nsgaii, qmc, gp, cmaes."
        ),
    ] = "grid",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Try so many: of a grid some by the seed, of a sampler 100."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Of the search and of random inputs.")
    ] = 0,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Where rows are kept while it runs: a file, or a database that several processes "
            "or machines share. OUT/sweep.journal if there is an --out.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write rows.jsonl and best.yaml here; a sweep that was stopped goes on from here.",
        ),
    ] = None,
    backend: Annotated[
        BackendName, typer.Option(help="Where candidates run that are not simulated.")
    ] = BackendName.AUTO,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called with the baseline's graph, gives its arrays; random ones if absent.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rounds in turn with the baseline.")
    ] = 5,
    replays: Annotated[
        int, typer.Option(min=1, metavar="N", help="Replays of each in a round.")
    ] = 3,
    steps: Annotated[
        int, typer.Option(min=0, metavar="N", help="Time every step, too, over N replays more.")
    ] = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Processes: one, or when simulating as many as cores; 0: this one.",
        ),
    ] = None,
    limit: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="After so long a candidate has failed."),
    ] = 120.0,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also write rows.parquet (needs pyarrow).")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the curves as one page.")
    ] = None,
    machine: Annotated[
        Path | None,
        typer.Option(
            metavar="PROFILE",
            help="With --html: what this machine profile predicts, beside what was measured.",
        ),
    ] = None,
    values: Values = None,
    preset: Preset = None,
    schedule: ScheduleFile = None,
    kernels: Kernels = None,
    routes: Routes = None,
    is_json: Json = False,
) -> int:
    """Try many schedules, keep the fastest.

    Every candidate is compiled and proven. On GPUs it must leave the bits of the baseline before
    it is timed, in turns with the baseline; one that fails is reported and never wins. With
    --simulate times are predicted. Stopped and started again with the same --out (or --storage) it
    goes on where it was. Ends with 1 if no candidate is left.

    \b
    Examples:
      graphc sweep moe_peer --simulate h200x2 --axis route=host,p2p --axis pieces=1:32
      graphc sweep moe_peer --preset full --axis route=host,host_copy,p2p \\
          --axis pieces=1:64:x2 --axis compute=1,2,4 --where 'pieces >= compute' --out found
      graphc compile moe_peer --preset full --schedule found/best.yaml
    """
    from graphc.cli.sweep import SweepOptions, run_sweep_command

    wanted = request(
        file, values=values, preset=preset, schedule=schedule, kernels=kernels, routes=routes
    )
    options = SweepOptions(
        axes=tuple(axes),
        where=tuple(where or ()),
        simulate=simulate,
        baseline=tuple(baseline or ()),
        sampler=sampler,
        trials=trials,
        seed=seed,
        storage=storage,
        out=out,
        backend=backend.value,
        inputs=inputs,
        rounds=rounds,
        replays=replays,
        steps=steps,
        workers=workers,
        limit_s=limit,
        has_parquet=parquet,
        html=html,
        machine=machine,
        is_json=is_json,
    )
    return run_sweep_command(wanted, options)


@app.command()
def simulate(
    file: SpecOrPlan,
    machine: Annotated[
        Path,
        typer.Option(
            metavar="MACHINE",
            help="A machine's profile: a file, or the name of a shipped one such as h200x2.",
        ),
    ],
    count: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Rows in use, at most the capacity; all if absent."),
    ] = None,
    entry: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Predict this entry. If absent: the first."),
    ] = None,
    suggests: Annotated[
        bool,
        typer.Option(
            "--suggest", help="Look for a better schedule, and print the values that make it."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --suggest: write it as a schedule file, too."),
    ] = None,
    html: Html = None,
    values: Values = None,
    preset: Preset = None,
    schedule: ScheduleFile = None,
    kernels: Kernels = None,
    routes: Routes = None,
    is_json: Json = False,
) -> int:
    """Predict a replay on a machine that need not be at hand.

    How long it takes, the least it could take and why, how busy each engine is, and the critical
    path. Of routes left to auto the machine decides: the first that its profile allows is taken.

    \b
    Examples:
      graphc simulate moe_peer --machine h200x2 --preset full
      graphc simulate moe_peer --machine h200x2 --preset full --html moe.html
      graphc simulate moe_peer --machine mine.yaml --preset full --set route=host_copy --json
      graphc simulate moe_peer --machine h200x2_no_p2p --preset full --suggest --out best.yaml
    """
    from graphc.cli.simulate import SimulateOptions, run_simulate

    wanted = request(
        file, values=values, preset=preset, schedule=schedule, kernels=kernels, routes=routes
    )
    options = SimulateOptions(
        machine=machine,
        count=count,
        entry=one_entry(entry),
        suggests=suggests,
        out=out,
        html=html,
        is_json=is_json,
    )
    return run_simulate(wanted, options)


@app.command()
def trace(
    file: SpecOrPlan,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WAY",
            help="cupti: the GPU's records of every node; events: around every op. "
            "CUPTI if it is installed.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Replays that are timed.")] = 20,
    machine: Annotated[
        Path | None,
        typer.Option(
            metavar="PROFILE", help="Set the prediction by a machine profile beside it, op by op."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE.json",
            help="Write the trace that Perfetto opens: that file, or trace.json in a folder, with "
            "phases.json and ops.jsonl.",
        ),
    ] = None,
    html: Html = None,
    backend: Annotated[
        BackendName, typer.Option(help="Where to run it; auto: on the GPUs if there are any.")
    ] = BackendName.AUTO,
    count: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Rows in use, at most the capacity; all if absent."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the random inputs.")] = 0,
    values: Values = None,
    preset: Preset = None,
    schedule: ScheduleFile = None,
    kernels: Kernels = None,
    routes: Routes = None,
    is_json: Json = False,
) -> int:
    """Tell when each op ran in a real replay, by phases, op by op, and as a trace file.

    A phase is a named group of ops in the spec; what its streams waited is charged apart, and told
    by what was going on meanwhile. A record that belongs to no op is reported as such.

    \b
    Examples:
      graphc trace moe_peer --set route=host --out trace.json
      graphc trace moe.graphc --machine h200x2 --html trace.html
      graphc trace moe_peer --preset small --backend reference
    """
    from graphc.cli.trace import TraceOptions, run_trace

    wanted = request(
        file, values=values, preset=preset, schedule=schedule, kernels=kernels, routes=routes
    )
    options = TraceOptions(by, rounds, machine, out, html, backend.value, count, seed, is_json)
    return run_trace(wanted, options)


@app.command()
def calibrate(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="Where to write the machine's profile."),
    ] = Path("machine.yaml"),
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What the profile calls the machine; the file's name."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the times that it rests on, too, as JSON."),
    ] = None,
    is_json: Json = False,
) -> int:
    """Measure a profile of this machine, for 'simulate' and 'sweep --simulate'.

    Rates of memory, arithmetic and links, each way and all at once, what launches and steps from
    op to op cost, and curves of the shipped kernels. Takes under two minutes where the kernels are
    compiled already; needs a GPU, and the machine to itself.

    \b
    Examples:
      graphc calibrate --out mine.yaml
      graphc simulate moe_peer --machine mine.yaml --preset full
    """
    from graphc.cli.calibrate import run_calibrate

    return run_calibrate(out, name=name or out.stem, figures=figures, is_json=is_json)


@app.command()
def doctor(is_json: Json = False) -> int:
    """Say what this machine can do, and what is missing.

    GPUs, driver, NVRTC, peer access and the rates of the links, each tested.
    Peer access is believed only after real bytes went both ways. Without a GPU it says what is
    missing and what works all the same: to compile, prove, show, and run on the reference.

    \b
    Examples:
      graphc doctor
      graphc doctor --json
    """
    from graphc.cli.doctor import run_doctor

    return run_doctor(is_json=is_json)
