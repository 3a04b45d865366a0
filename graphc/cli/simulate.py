"""``graphc simulate``: the predicted replay of a schedule on a machine that need not be at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.output import columns, note, plural, print_json, progress, say, write_text
from graphc.cli.request import Request, is_plan, profile_of, refuse_values
from graphc.ir import Kernel
from graphc.text.diagnostics import UsageError, render
from graphc.text.units import us_text as us
from graphc.text.write import check_place

if TYPE_CHECKING:
    from graphc.predict import Chosen
    from graphc.profiles import ProfileSpec
    from graphc.simulation.predict import Prediction
    from graphc.simulation.summary import Summary
    from graphc.suggest import Suggestion

MOST_STEPS = 12  # of the critical path that are printed


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    machine: Path
    count: int | None = None
    entry: str | None = None
    suggests: bool = False
    out: Path | None = None  # the schedule file that is suggested
    html: Path | None = None
    is_json: bool = False


def run_simulate(wanted: Request, options: SimulateOptions) -> int:
    if options.out is not None and not options.suggests:
        raise UsageError("--out is where --suggest writes a schedule: give both")
    if options.html is not None and options.suggests:
        raise UsageError("--suggest draws nothing: simulate with the values that it gives")
    check_place(options.html)
    check_place(options.out)
    profile = profile_of(wanted, options.machine)
    if options.suggests:
        return run_suggest(wanted, profile, options)
    with progress() as doing:
        doing(f"compiling {wanted.path}")
        found, chosen = predicted(wanted, profile, options)
    tell_shared(found)
    tell_rates(found, chosen, options.count)
    if options.html is not None:
        write_page(found, chosen, options.html)
    if options.is_json:
        print_json(facts(found, chosen))
    else:
        tell(found, chosen)
        if options.html is not None:
            note(f"wrote {options.html}")
    return 0


def predicted(
    wanted: Request, profile: ProfileSpec, options: SimulateOptions
) -> tuple[Prediction, Chosen]:
    from graphc import api, predict

    if is_plan(wanted.path):
        refuse_values(wanted)
        chosen = predict.chosen_of(api.load(wanted.path), profile, None)
    else:
        chosen = predict.schedule_for(wanted.path, profile, **wanted.options())
    found = predict.predicted(chosen, profile, count=options.count, entry=options.entry)
    return found, chosen


def tell_shared(found: Prediction) -> None:
    """Say where the devices are, if the machine has fewer GPUs than the program devices."""
    profile, gpus = found.profile, sorted(set(found.placed.values()))
    if len(found.placed) > profile.gpus.count:
        note(
            f"note: {plural(len(found.placed), 'device')} on {plural(profile.gpus.count, 'GPU')} "
            f"of '{profile.name}': all on GPU {', '.join(map(str, gpus))}"
        )


def tell_rates(found: Prediction, chosen: Chosen, count: int | None) -> None:
    """Warn of kernels whose time is that of another dtype, for want of a rate of theirs."""
    from graphc.kernels.costs import kernel_costs
    from graphc.profiles import unknown_rates

    profile, program = found.profile, found.schedule.program
    costs = kernel_costs(program, chosen.catalog, profile.shape, count=count)
    named = ((op.work.template, cost) for op, cost in costs if isinstance(op.work, Kernel))
    for each in unknown_rates(profile, named):
        note(render(each, weight="warning"))


def write_page(found: Prediction, chosen: Chosen, path: Path) -> None:
    from graphc.draw.look import simulation_page

    routes = ", ".join(dict.fromkeys(chosen.routes.values()))
    title = f"{found.schedule.program.name}: {f'route {routes}' if routes else 'no transfers'}"
    title += f", entry {found.schedule.entry}" if len(chosen.schedules) > 1 else ""
    write_text(path, simulation_page(found, title=title, phases=chosen.phases))


def facts(found: Prediction, chosen: Chosen) -> dict[str, Any]:
    from graphc.simulation.summary import summarize

    summary = asdict(summarize(found))
    return {
        "name": found.schedule.program.name,
        "machine": found.profile.name,
        "routes": dict(chosen.routes),
        "entry": found.schedule.entry,
        "placed": dict(found.placed),
        "ops": len(found.tasks),
        **summary,
    }


def tell(found: Prediction, chosen: Chosen) -> None:
    from graphc.simulation.summary import summarize

    summary = summarize(found)
    routes = ", ".join(dict.fromkeys(chosen.routes.values()))
    by = f" by {routes}" if routes else ""
    say(
        f"{found.schedule.program.name}{by} on {found.profile.name}: "
        f"{us(summary.total_us)} predicted for {plural(len(found.tasks), 'op')}"
    )
    if len(chosen.schedules) > 1:
        say(f"  of the entries {', '.join(chosen.schedules)}: {found.schedule.entry}")
    say(f"  at least {us(summary.lower_bound_us)}: {summary.bound_by}")
    say(f"  launch: {us(summary.launch_us)} of the host")
    say("")
    rows = [("engine", "busy"), *((name, f"{share:.0%}") for name, share in busiest(summary))]
    say(columns(rows))
    say("")
    path = [("critical path", "pieces", "works", "before it")]
    path += [
        (each.step, str(each.pieces), us(each.us), us(each.before_us))
        for each in summary.critical_path[:MOST_STEPS]
    ]
    say(columns(path))
    left = len(summary.critical_path) - MOST_STEPS
    if left > 0:
        say(f"... and {plural(left, 'step')} more: --json has all")


def busiest(summary: Summary) -> list[tuple[str, float]]:
    return sorted(summary.busy.items(), key=lambda each: (-each[1], each[0]))


def run_suggest(wanted: Request, profile: ProfileSpec, options: SimulateOptions) -> int:
    from graphc.suggest import suggested, write_suggestion

    if is_plan(wanted.path):
        raise UsageError(f"'{wanted.path}' is a plan: a suggestion needs the spec")
    with progress() as doing:
        found = suggested(
            wanted.path,
            profile,
            options.count,
            options.entry,
            lambda tried, best: doing(f"{tried} tried, best {us(best)}"),
            **wanted.options(),
        )
    if options.out is not None:
        write_suggestion(options.out, wanted.path, profile, found, **wanted.options())
    if options.is_json:
        print_json(suggestion_facts(found, profile))
    else:
        tell_suggestion(found, profile)
    if options.out is not None and not options.is_json:
        note(f"wrote {options.out}")
    return 0


def suggestion_facts(found: Suggestion, profile: ProfileSpec) -> dict[str, Any]:
    return {
        "machine": profile.name,
        "values": dict(found.values),
        "total_us": found.total_us,
        "given_us": found.given_us,
        "tried": found.tried,
        "set": set_words(found.values),
    }


def tell_suggestion(found: Suggestion, profile: ProfileSpec) -> None:
    say(
        f"on {profile.name}: {us(found.total_us)} predicted, {us(found.given_us)} as the spec has "
        f"it ({plural(found.tried, 'schedule')} tried)"
    )
    for each in set_words(found.values):
        say(f"  --set {each}")


def set_words(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={word(value)}" for name, value in values.items()]


def word(value: Any) -> str:
    """
    >>> word(["1/4", "3/4"]), word(True), word(8)
    ("'[1/4, 3/4]'", 'true', '8')
    """
    if isinstance(value, list):
        return f"'[{', '.join(map(str, value))}]'"
    return str(value).lower() if isinstance(value, bool) else str(value)
