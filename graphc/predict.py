"""What a spec or a plan would do on a machine: simulate, and the variant that the machine takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphc import api
from graphc.backends.binding import check_entry
from graphc.ir import Program, Schedule
from graphc.kernels.contract import Catalog
from graphc.machine import place_devices
from graphc.passes.choose_routes import choose_routes, chosen_routes, has_auto, requirements
from graphc.pipeline import Observer, collector_paused, ignore, schedule_programs
from graphc.plan import Plan, Proof, Requirement
from graphc.profiles import ProfileSpec, load_profile
from graphc.resources import kernel_folders
from graphc.routes import RouteSpec
from graphc.simulation.predict import Prediction, predict
from graphc.text.diagnostics import UsageError

Machine = ProfileSpec | str | Path
Devices = Mapping[str, int] | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The schedules that a machine takes, of those that ``auto`` leaves open: one an entry."""

    schedules: Mapping[str, Schedule]  # by entry; the first is what a launch takes
    routes: Mapping[str, str]  # transfer -> route
    catalog: Catalog
    params: Mapping[str, Any] = field(default_factory=dict)
    proof: Proof | None = None  # of a spec, proven here
    phases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # phase -> its steps

    @property
    def schedule(self) -> Schedule:
        return next(iter(self.schedules.values()))

    def of(self, entry: str | None) -> Schedule:
        """That of an entry, the first if None; a ``UsageError`` if there is none of that name."""
        return self.schedules[check_entry(entry, self.schedules)]


def simulate(
    what: Schedule | Plan | str | Path,
    *,
    machine: Machine,
    count: int | None = None,
    entry: str | None = None,
    devices: Devices = None,
    **options: Any,
) -> Prediction:
    """Predict one replay of a spec, a plan or a schedule on a machine.

    ``machine`` is a profile, its file, or the name of a shipped one. Of the variants that ``auto``
    leaves open the first whose requirements the machine meets is taken; of several entries the
    first, or ``entry``. A spec takes the options of ``graphc.check``: a preset, a schedule file,
    values.
    """
    profile = machine if isinstance(machine, ProfileSpec) else load_profile(machine)
    if isinstance(what, str | Path):
        chosen = schedule_for(what, profile, devices, **options)
    else:
        if options:
            raise UsageError(f"{next(iter(options))}: only a spec takes values")
        chosen = chosen_of(what, profile, devices)
    return predicted(chosen, profile, count=count, entry=entry, devices=devices)


def predicted(
    chosen: Chosen,
    profile: ProfileSpec,
    *,
    count: int | None = None,
    entry: str | None = None,
    devices: Devices = None,
) -> Prediction:
    """The replay of an entry that the machine takes."""
    schedule = chosen.of(entry)
    program = schedule.program
    return predict(
        schedule,
        profile,
        catalog=chosen.catalog,
        placed=placed_on(program, profile, devices),
        count=checked_count(count, program),
    )


def schedule_for(
    path: str | Path,
    profile: ProfileSpec,
    devices: Devices = None,
    /,
    *,
    preset: str | None = None,
    schedule: str | Path | None = None,
    kernels: api.Folders = (),
    routes: api.Folders = (),
    observe: Observer = ignore,
    origin: str = api.PYTHON,
    **values: Any,
) -> Chosen:
    """The proven schedules of a spec that the machine takes; others are not even made."""
    with collector_paused():
        read = api.read(path, preset, schedule, kernels, routes, values, origin=origin)
        built, catalog, known = read
        if built.schedule is not None:
            return Chosen({built.schedule.entry: built.schedule}, {}, catalog)
        program = built.program
        assert program is not None
        placed = placed_on(program, profile, devices)
        why: list[str] = []
        is_open = any(has_auto(each) for each in built.programs)
        for auto in by_preference(known) if is_open else [next(iter(known))]:
            every = [choose_routes(each, known, auto=auto) for each in built.programs]
            needs = [need for each in every for need in requirements(each, known)]
            missing = first_missing(needs, profile, placed)
            if missing is not None:
                taken = {route for each in every for route in chosen_routes(each).values()}
                why.append(refused(profile, missing, any(known[each].requires for each in taken)))
                continue
            # Entries signal each other: one by itself would be another schedule.
            _, schedules, proof = schedule_programs(
                built.programs,
                known,
                catalog,
                built.settings,
                auto=auto,
                observe=observe,
                dump=api.dumped,
            )
            return Chosen(
                {each.entry: each for each in schedules},
                {name: route for each in every for name, route in chosen_routes(each).items()},
                catalog,
                built.params,
                proof,
                api.phase_steps(built.phases, [each.program for each in schedules]),
            )
    raise UsageError(why[-1])


def by_preference(routes: Mapping[str, RouteSpec]) -> list[str]:
    found = sorted(routes.values(), key=lambda each: (-each.prefer, each.name))
    return [each.name for each in found]


def chosen_of(what: Schedule | Plan, profile: ProfileSpec, devices: Devices) -> Chosen:
    catalog = Catalog(kernel_folders())
    if isinstance(what, Schedule):
        return Chosen({what.entry: what}, {}, catalog)
    why: list[str] = []
    for each in what.variants:
        placed = placed_on(each.schedule.program, profile, devices)
        missing = first_missing(each.requires, profile, placed)
        if missing is None:
            return Chosen(each.schedules, each.routes, catalog, phases=what.phases)
        why.append(refused(profile, missing, bool(each.routes)))
    raise UsageError(why[-1])


def first_missing(
    needs: Sequence[Requirement], profile: ProfileSpec, placed: Mapping[str, int]
) -> str | None:
    return next((why for each in needs if (why := profile.why_not(each, placed))), None)


def refused(profile: ProfileSpec, missing: str, by_route: bool) -> str:
    """What to do where a machine lacks what a variant requires, by a route or by kernels alone."""
    if by_route:
        return (
            f"machine '{profile.name}' can take none of the routes: {missing}; "
            "a route by way of the host, such as host_copy, needs nothing"
        )
    return (
        f"machine '{profile.name}' cannot run this: {missing}, but kernels of it touch the memory "
        "of other GPUs, which no route changes; take a machine with peer access, or place all "
        "devices on one GPU"
    )


def placed_on(program: Program, profile: ProfileSpec, devices: Devices) -> dict[str, int]:
    return place_devices(program.devices, profile.gpus.count, devices)


def checked_count(count: int | None, program: Program) -> int | None:
    if count is None:
        return program.capacity
    if program.capacity is None:
        raise UsageError("count: nothing in this program varies with a count")
    if not 0 <= count <= program.capacity:
        raise UsageError(f"count: {count} is not within 0 to {program.capacity}, the capacity")
    return count
