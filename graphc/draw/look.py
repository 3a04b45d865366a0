"""What each page shows: a plan, a simulation, a trace, a sweep, with its facts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphc.backends.recording import Span, Way
from graphc.draw.page import page, timeline_page
from graphc.draw.scene import Column, Table, View, table_json
from graphc.draw.swimlanes import caption
from graphc.draw.timeline import timeline as estimated_timeline
from graphc.ir import Schedule
from graphc.simulation.predict import Prediction
from graphc.simulation.summary import critical_ops, summarize
from graphc.text.units import bytes_text, us_text
from graphc.timeline import Source, Timeline
from graphc.tracing.phases import PhaseTime, phase_times
from graphc.tracing.slices import slices_of
from graphc.tracing.traced import Trace

Phases = Mapping[str, Sequence[str]]
WAYS = {
    Way.CUPTI: "by CUPTI's records of every node",
    Way.EVENTS: "by events around every op, which add some 5 us to each",
    Way.WALL: "the references on the host, one after the other: they say nothing about kernels",
}
SMALL_US = 0.05  # what is less is not told


def plan_page(
    schedule: Schedule, *, title: str, phases: Phases, durations: Mapping[str, float] | None = None
) -> str:
    """A schedule by nominal rates: an order to look at, no prediction."""
    boxes = estimated_timeline(schedule, durations=durations)
    spans = {box.op: Span(box.start_us, box.stop_us) for box in boxes.boxes}
    timeline = Timeline(Source.SIMULATED, slices_of(schedule, spans), boxes.stop_us)
    basis = "by nominal rates and waits alone: an order to look at, no prediction"
    facts = schedule_facts(schedule)
    tables = (phase_table(phase_times(timeline, phases)),) if phases else ()
    view = View("schedule", basis, timeline, facts=facts, tables=tables)
    return timeline_page(schedule, [view], title=title, subtitle=caption(schedule), phases=phases)


def schedule_facts(schedule: Schedule) -> tuple[tuple[str, str], ...]:
    from graphc.draw.resources import resources

    used = resources(schedule)
    return (
        ("ops", f"{used.ops:,}"),
        ("streams", f"{used.streams:,}"),
        ("waits", f"{used.waits:,}"),
        *((f"memory on {place}", bytes_text(nbytes)) for place, nbytes in used.nbytes.items()),
    )


def simulation_page(found: Prediction, *, title: str, phases: Phases) -> str:
    view = prediction_view(found, phases)
    subtitle = f"on {found.profile.name}; {caption(found.schedule)}"
    return timeline_page(found.schedule, [view], title=title, subtitle=subtitle, phases=phases)


def prediction_view(found: Prediction, phases: Phases) -> View:
    summary = summarize(found)
    facts = (
        ("predicted", us_text(summary.total_us)),
        (f"lower bound: {summary.bound_by}", us_text(summary.lower_bound_us)),
        ("launch, of the host", us_text(summary.launch_us)),
    )
    engines = sorted(summary.busy.items(), key=lambda each: (-each[1], each[0]))
    bounds = sorted(summary.bounds_us.items(), key=lambda each: (-each[1], each[0]))
    tables = [
        Table(
            "Critical path",
            (
                Column("step"), Column("engine"), Column("pieces", "number"),
                Column("works", "us"), Column("before it", "us"),
            ),
            tuple(
                (each.step, each.engine, each.pieces, each.us, each.before_us)
                for each in summary.critical_path
            ),
            note="by step, in the order of their first pieces",
        ),
        Table(
            "Engines",
            (Column("engine"), Column("busy", "share")),
            tuple(engines),
            note="the share of the time in which each had anything to do",
        ),
        Table(
            "Lower bounds",
            (Column("resource"), Column("its work in a row", "us")),
            tuple(bounds),
            note="no schedule of these ops is faster than the first",
        ),
    ]  # fmt: skip
    timeline = found.timeline
    if phases:
        tables.insert(0, phase_table(phase_times(timeline, phases)))
    return View(
        "predicted",
        f"by the profile {found.profile.name}",
        timeline,
        critical=tuple(found.orders.ops[each].name for each in critical_ops(found)),
        facts=facts,
        tables=tuple(tables),
    )


def trace_page(trace: Trace, *, title: str, prediction: Prediction | None = None) -> str:
    """A trace, beneath what was predicted if that is given."""
    schedule, phases = trace.variant.schedule, trace.plan.phases
    views = [trace_view(trace)]
    if prediction is not None:
        views.insert(0, prediction_view(prediction, phases))
    return timeline_page(
        schedule,
        views,
        title=title,
        subtitle=caption(schedule),
        phases=phases,
        notes=trace_notes(trace),
    )


def trace_view(trace: Trace) -> View:
    count = len(trace.timelines)
    basis = WAYS[trace.recording.way]
    if count > 1:
        basis += f"; drawn: the one of middling length of {count} replays"
    facts = ((f"measured, median of {count}", us_text(trace.total_us)),)
    tables = [op_table(trace)]
    if trace.replay.strays:
        tables.insert(0, stray_table(trace))
    if trace.plan.phases:
        tables.insert(0, phase_table(trace.phases))
    return View("measured", basis, trace.timeline, facts=facts, tables=tuple(tables))


def trace_notes(trace: Trace) -> list[str]:
    """What has to be known to read the trace."""
    clocks: dict[str, list[str]] = {}
    for device, clock in trace.recording.clocks.items():
        clocks.setdefault(clock, []).append(device)
    notes = [f"clock of {', '.join(devices)}: {clock}" for clock, devices in clocks.items()]
    notes += trace.recording.notes
    if trace.variant.others:
        entry, count = trace.variant.schedule.entry, len(trace.variant.schedules)
        notes.append(f"of {count} entries the first is traced: {entry}")
    if trace.missing:
        few = ", ".join(trace.missing[:5]) + (", ..." if len(trace.missing) > 5 else "")
        notes.append(f"nothing was seen of {len(trace.missing)} ops: {few}")
    return notes


def op_table(trace: Trace) -> Table:
    columns = [
        Column("op"), Column("phase"), Column("device"),
        Column("start", "us"), Column("measured", "us"), Column("waited", "us"),
    ]  # fmt: skip
    has_prediction = trace.predicted is not None
    if has_prediction:
        columns += [Column("predicted", "us"), Column("error", "error")]
    rows = []
    for each in trace.ops:
        row: tuple[Any, ...] = (
            each.op, each.phase or "", each.device, each.start_us, each.us, each.waited_us,
        )  # fmt: skip
        rows.append((*row, each.predicted_us, each.error) if has_prediction else row)
    note = "medians over the replays; a click shows the op"
    return Table("Ops", tuple(columns), tuple(rows), note)


def stray_table(trace: Trace) -> Table:
    columns = (
        Column("record"), Column("GPU", "number"), Column("start", "us"), Column("time", "us"),
        Column("why it counts for no op"),
    )  # fmt: skip
    rows = tuple(
        (each.what, each.device, each.start_us, each.stop_us - each.start_us, each.why)
        for each in trace.replay.strays
    )
    return Table("Records that belong to no op", columns, rows)


def phase_table(phases: Iterable[PhaseTime]) -> Table:
    columns = (
        Column("phase"), Column("ops", "number"), Column("on the clock", "us"),
        Column("together", "us"), Column("waited", "us"), Column("waited for"),
    )  # fmt: skip
    rows = tuple(
        (
            each.phase, each.ops, each.clock_us, each.busy_us, each.waited_us,
            shares_text(each.waited_for),
        )
        for each in phases
    )  # fmt: skip
    note = "on the clock: at least one op ran; together: all its ops; waited: streams idle before"
    return Table("Phases", columns, rows, note)


def shares_text(shares: Mapping[str, float]) -> str:
    """In which a name and its time stay on one line."""
    told = (f"{name} {us_text(part)}" for name, part in shares.items() if part >= SMALL_US)
    return ", ".join(each.replace(" ", "\N{NO-BREAK SPACE}") for each in told)


def sweep_page(
    rows: Sequence[Mapping[str, Any]],
    *,
    name: str,
    axes: Sequence[str],
    winner: int | None,
    basis: str,
    baseline_us: float | None = None,
) -> str:
    """All candidates of a sweep; ``rows`` as in its rows.jsonl, ``winner`` the index of one."""
    by = {"predicted": "predicted", "measured": "measured by events"}
    place = {row["index"]: at for at, row in enumerate(rows)}
    best = None if winner is None else rows[place[winner]]
    data = {
        "sweep": {
            "rows": list(rows),
            "axes": list(axes),
            "winner": None if winner is None else place[winner],
            "basis": basis,
            "baselineUs": baseline_us,
            "basisText": by.get(basis, "by the host's clock, on the reference"),
            "x": axis_of_numbers(rows, axes),
            "by": axis_of_names(rows, axes),
            "table": table_json(sweep_table(rows, axes)),
        }
    }
    ok = sum(row["status"] == "ok" for row in rows)
    facts = [("candidates", f"{len(rows):,}"), ("ok", f"{ok:,}")]
    if best is not None:
        facts.append(("best", us_text(best["us"])))
    if baseline_us is not None:
        facts.append(("baseline", us_text(baseline_us)))
    if best is not None and baseline_us:
        facts.append(("of the baseline's time", f"{best['us'] / baseline_us:.0%}"))
    subtitle = ", ".join(
        f"{axis} ({len({str(row['values'][axis]) for row in rows})})" for axis in axes
    )
    return page(data, title=f"{name}: a sweep", subtitle=f"over {subtitle}", facts=facts)


def sweep_table(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Table:
    has_prediction = any(row.get("predicted_us") is not None for row in rows)
    has_reasons = any(row.get("reason") for row in rows)
    columns = [
        *(Column(axis, "number" if is_number(rows, axis) else "text") for axis in axes),
        Column("time", "us"), Column("of the baseline", "percent"),
        *([Column("predicted", "us"), Column("error", "error")] if has_prediction else []),
        Column("status"), *([Column("why")] if has_reasons else []),
    ]  # fmt: skip
    found = tuple(cells(row, axes, has_prediction, has_reasons) for row in rows)
    return Table("Candidates", tuple(columns), found)


def cells(
    row: Mapping[str, Any], axes: Sequence[str], has_prediction: bool, has_reasons: bool
) -> tuple[Any, ...]:
    values = (word(row["values"][axis]) for axis in axes)
    predicted: tuple[Any, ...] = ()
    if has_prediction:
        guess, time_us = row.get("predicted_us"), row.get("us")
        predicted = guess, guess / time_us - 1 if guess is not None and time_us else None
    why = [row.get("reason") or ""] if has_reasons else []
    return *values, row["us"], row.get("relative"), *predicted, row["status"], *why


def word(value: Any) -> Any:
    """Numbers stay numbers, so that they sort as such."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return value if isinstance(value, int | float | str) else str(value)


def is_number(rows: Sequence[Mapping[str, Any]], axis: str) -> bool:
    values = (row["values"][axis] for row in rows)
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def axis_of_numbers(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> str | None:
    """The numeric axis with the most values: a curve runs along it."""
    numeric = [axis for axis in axes if is_number(rows, axis)]
    return max(numeric, key=lambda axis: len({row["values"][axis] for row in rows}), default=None)


def axis_of_names(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> str | None:
    """The route if that varies, else the first axis of names: it has a curve for each."""
    names = [axis for axis in axes if not is_number(rows, axis)]
    routes = [axis for axis in names if axis == "route" or axis.endswith(".route")]
    return next(iter((*routes, *names)), None)
