"""Spec + values -> Programs: everything evaluated, repeats unrolled, kernels bound to contracts.

1. Values are set and checked (``values``), ops are unrolled and named (``expand``).
2. Buffers are made. Scratch belongs to the innermost repeat that holds all of its users and exists
   once an iteration, ``each: layer`` once for each value of that index, all else once.
3. Each op is bound and placed as the schedule says.
4. Each entry becomes a program of its own, of the ops of its groups.
5. A read of bytes that nothing has written is refused, and an output that nothing writes.

Where there are ranks, every buffer and every op exists once a rank, and an op's twins on all ranks
stand together: op by op, then rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphc.ir import Op, Program, Role, Schedule, Settings
from graphc.kernels.contract import Catalog
from graphc.routes import RouteSpec
from graphc.spec.bind import Binder
from graphc.spec.buffers import Buffers, with_users
from graphc.spec.cuts import cuts_of
from graphc.spec.devices import check_devices, device_names
from graphc.spec.entries import Entries, Groups, entries_of, groups_of
from graphc.spec.expand import Context, Draft, Expander
from graphc.spec.faults import Faults
from graphc.spec.flow import check_flow
from graphc.spec.handwritten import build_handwritten
from graphc.spec.model import HandSpec, LayerSpec, Spec
from graphc.spec.names import broken_names, written_ops
from graphc.spec.phases import phases_of
from graphc.spec.placement import Placements, check_streams
from graphc.spec.ranks import ranks_of
from graphc.spec.settings import settings_of
from graphc.spec.values import (
    Given,
    ScheduleInForce,
    Values,
    is_schedule_name,
    read_schedule_file,
    schedule_in_force,
    set_by,
    values_of,
)
from graphc.text.diagnostics import error


@dataclass(frozen=True, slots=True)
class Built:
    """What a spec says at the given values: a program, or a hand-written schedule."""

    name: str
    params: dict[str, Any]
    settings: Settings
    programs: tuple[Program, ...] = ()  # one for each entry; the first is what is launched
    schedule: Schedule | None = None
    phases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # phase -> ops, uncut
    sequence: tuple[str, ...] = ()  # the first entry, behind those that come before it

    @property
    def program(self) -> Program | None:
        return self.programs[0] if self.programs else None


def build(
    spec: Spec,
    values: Mapping[str, Any],
    catalog: Catalog,
    routes: Mapping[str, RouteSpec],
    *,
    preset: str | None = None,
    schedule: str | Path | None = None,
    origin: str = "--set {name}={value}",
) -> Built:
    """Build the program of a spec; a ``SpecError`` of all mistakes that can be found in one run.

    ``origin`` is what messages call the place of one of the ``values``.
    """
    faults = Faults(spec.faults, broken_names(spec))
    given = {name: Given(value, set_by(name, value, origin)) for name, value in values.items()}
    check_devices(spec, faults)
    if isinstance(spec, HandSpec):
        if schedule is not None:
            raise error("bad-schedule", "a hand-written schedule cannot be replaced by another")
        found = values_of(spec, given, preset, faults)
        proven = build_handwritten(spec, found.scope, faults)
        return Built(spec.name, found.params, Settings(), schedule=proven)
    base, own = read_schedule_file(schedule, faults) if schedule is not None else (None, {})
    of_schedule = {name: each for name, each in given.items() if is_schedule_name(name, spec)}
    of_params = {name: each for name, each in given.items() if name not in of_schedule}
    found = values_of(spec, {**own, **of_params}, preset, faults)
    in_force = schedule_in_force(spec, base, of_schedule, faults)
    builder = Builder(spec, found, in_force, catalog, routes, faults)
    programs = builder.programs()
    settings = settings_of(in_force, found.scope, builder.ranks, faults)
    faults.check()
    return Built(
        spec.name,
        found.params,
        settings,
        programs,
        phases=builder.phases,
        sequence=builder.entries.sequence,
    )


class Builder:
    """The steps that share a spec, its values and its mistakes."""

    def __init__(
        self,
        spec: LayerSpec,
        values: Values,
        schedule: ScheduleInForce,
        catalog: Catalog,
        routes: Mapping[str, RouteSpec],
        faults: Faults,
    ) -> None:
        self.spec, self.values, self.schedule = spec, values, schedule
        self.routes, self.faults = routes, faults
        self.phases: dict[str, tuple[str, ...]] = {}
        self.ranks = ranks_of(spec, values.scope, faults)
        self.devices = self.ranks.devices or device_names(spec)
        self.entries = Entries()
        self.expander = Expander(catalog, faults)
        self.buffers = Buffers(self.devices, values.count_name, faults)

    def programs(self) -> tuple[Program, ...]:
        """A program for each entry; the ops of all of them are made together."""
        cuts = cuts_of(self.spec, self.schedule, self.values.scope, self.faults)
        counts = {f"{name}.count": each.count for name, each in cuts.items()}
        scope = {**self.values.scope, **counts}
        groups = groups_of(self.spec, self.faults)
        self.entries = entries_of(self.spec, groups, self.values.scope, self.faults)
        names = self.ranks.names(self.spec, scope)
        contexts = self.ranks.contexts(self.spec, names, scope, self.values.scope)
        drafts = self.drafts(groups, contexts)
        # An op may be written and yet not be there: the count of its repeat was at fault.
        written = {*self.expander.keys, *written_ops(self.spec.site.document.data)}
        placements = Placements(self.schedule, cuts, self.routes, self.faults)
        placements.check_keys(self.expander.keys, written)
        self.phases = phases_of(self.spec, self.expander.drafts, written, self.faults)
        self.buffers.learn(drafts)
        repeats = {each for specs, _, _ in groups.values() for each in indices(specs)}
        for each in names:
            with self.faults.collecting():
                self.buffers.make_unused(each, repeats)
        binder = Binder(self.buffers, cuts)
        ops = [(draft, op) for draft in drafts for op in self.ops_of(draft, binder, placements)]
        made = [op for _, op in ops]
        check_streams(made, self.buffers.made, self.routes, self.schedule.site, self.faults)
        of_group: dict[int, list[Op]] = {}
        for draft, op in ops:
            of_group.setdefault(draft.place[0], []).append(op)
        numbers = {name: number for number, name in enumerate(groups)}
        programs = tuple(
            self.finished(name, [op for each in used for op in of_group.get(numbers[each], ())])
            for name, used in self.entries.groups.items()
        )
        self.check_entries(programs)
        return programs

    def drafts(self, groups: Groups, contexts: Iterable[Context]) -> list[Draft]:
        """The ops of all groups and ranks, before their buffers exist."""
        for context in contexts:
            for number, (specs, site, _) in enumerate(groups.values()):
                with self.faults.collecting():
                    self.expander.expand(specs, site, replace(context, place=(number,)))
        drafts = self.expander.drafts
        if self.ranks.all:  # op by op, then rank
            drafts = sorted(drafts, key=lambda each: each.place)
        return drafts

    def ops_of(self, draft: Draft, binder: Binder, placements: Placements) -> Iterable[Op]:
        """The op of a draft, unless something is wrong with it."""
        found: list[Op] = []
        with self.faults.collecting(draft.context.notes):
            op = binder.op_of(draft)
            found.append(placements.placed(op, draft, self.expander.taken, self.buffers.made))
        return found

    def finished(self, entry: str, ops: list[Op]) -> Program:
        used = {each.region.buffer for op in ops for each in op.accesses}
        made = self.buffers.made
        asked = {
            name for name, each in made.items() if name in used or each.role is not Role.SCRATCH
        }
        bases = {overlay[0] for name in asked if (overlay := made[name].overlay)}
        kept = {name: each for name, each in made.items() if name in asked or name in bases}
        capacity = self.values.capacity
        return Program(
            self.spec.name,
            self.devices,
            with_users(kept, ops),
            tuple(ops),
            capacity,
            max(capacity, 1) if capacity is not None else 1,
            self.values.count_name,
            entry,
            self.ranks.placed,
        )

    def check_entries(self, programs: tuple[Program, ...]) -> None:
        if self.faults.found:
            return
        for program in programs:
            if not program.ops and self.spec.entries:
                at = self.spec.site["entries"][program.entry].key
                self.faults.mistake("empty-entry", f"entry '{program.entry}' has no ops", at)
        check_flow(programs, self.faults)


def indices(ops: Any) -> set[str]:
    """The indices of all repeats."""
    found: set[str] = set()
    for each in ops:
        if hasattr(each, "body"):
            found |= {each.index} | indices(each.body)
    return found
