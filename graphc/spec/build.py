"""Spec + values -> Programs: everything evaluated, repeats unrolled, kernels bound to contracts.

1. Values are set and checked (``values``), ops are unrolled and named (``expand``).
2. Buffers are made. Scratch belongs to the innermost repeat that holds all of its users and exists
   once an iteration, ``each: layer`` once for each value of that index, all else once.
3. Each op is bound and placed as the schedule says.
4. Each entry becomes a program of its own, of the ops of its groups.
5. A read of bytes that nothing has written is refused, and an output that nothing writes.

Where there are ranks, every buffer and every op exists once a rank, and an op's twins on all ranks
stand together: op by op, then rank.

Regions are whole buffers; transfers are still transfers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from graphc.dtypes import DTYPES
from graphc.ir import (
    HOST,
    MAPPED,
    SPLIT,
    Access,
    Axis,
    Buffer,
    Division,
    Emit,
    Extern,
    Fill,
    LaunchContract,
    Mode,
    Op,
    Program,
    Role,
    Rows,
    RowsKind,
    Schedule,
    Settings,
    Signalling,
    Transfer,
    Work,
)
from graphc.kernels.bind import bind
from graphc.kernels.call import Argument, share_bytes
from graphc.kernels.contract import Catalog
from graphc.regions import Region
from graphc.routes import RouteSpec
from graphc.spec.buffers import Buffers, placed_by_rank
from graphc.spec.entries import Entries, entries_of, groups_of
from graphc.spec.expand import NAME, Draft, Expander, Use
from graphc.spec.faults import Faults
from graphc.spec.flow import check_flow
from graphc.spec.handwritten import build_handwritten
from graphc.spec.model import (
    GLOBALS,
    ExternOpSpec,
    FillOpSpec,
    HandSpec,
    HeadSpec,
    KernelOpSpec,
    LayerSpec,
    PlacementSpec,
    Spec,
    TransferOpSpec,
)
from graphc.spec.placement import (
    Cut,
    Entry,
    after_of,
    bounds_of,
    check_pieces,
    check_streams,
    entry_of,
    placed,
)
from graphc.spec.ranks import device_names, ranks_of
from graphc.spec.values import (
    Given,
    ScheduleInForce,
    Values,
    is_schedule_name,
    raw_names,
    read_schedule_file,
    schedule_in_force,
    set_by,
    values_of,
)
from graphc.text.diagnostics import Note, Span, error
from graphc.text.expr import evaluate_count, evaluate_number, evaluate_word, factor_of, mentions
from graphc.text.load import Site, kind
from graphc.text.suggest import did_you_mean

CONVERTIBLE = ("f32", "f16", "bf16")


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
    settings = builder.settings()
    faults.check()
    return Built(
        spec.name,
        found.params,
        settings,
        programs,
        phases=builder.phases,
        sequence=builder.entries.sequence,
    )


def broken_names(spec: HeadSpec) -> set[str]:
    """Names that the file declares, but whose declarations could not be used."""
    data = spec.site.document.data
    kept = {*spec.params, *spec.let, *spec.buffers}
    names = {*raw_names(data, "params", "let", "buffers")} - kept
    if isinstance(spec, LayerSpec):
        names |= {*raw_names(data, "cuts")} - {*spec.cuts}
        names |= {f"{each}.count" for each in {*raw_names(data, "cuts")} - {*spec.cuts}}
    for section in {*data} - {*type(spec).model_fields}:  # a section under a wrong name
        names |= {*raw_names(data, section)}
    if not isinstance(data.get("devices"), list):
        names |= set(devices_named(data))
    if spec.faults:
        names |= set(written_ops(data))
    return names


def written_ops(data: Any) -> Iterable[str]:
    """The ops that a file names, in whatever group."""
    yield from op_names(data.get("ops"))
    groups = data.get("groups")
    for each in groups.values() if isinstance(groups, dict) else ():
        yield from op_names(each)


def devices_named(data: Any) -> Iterable[str]:
    if isinstance(data, dict):
        if isinstance(data.get("device"), str):
            yield data["device"]
        data = list(data.values())
    for each in data if isinstance(data, list) else ():
        yield from devices_named(each)


def op_names(ops: Any) -> Iterable[str]:
    for each in ops if isinstance(ops, list) else ():
        if isinstance(each, dict):
            if isinstance(each.get("name"), str):
                yield each["name"]
            yield from op_names(each.get("body"))


def check_devices(spec: LayerSpec | HandSpec, faults: Faults) -> None:
    if not isinstance(spec.devices, list):
        return
    for index, name in enumerate(spec.devices):
        at = spec.site["devices"][index].span
        if not NAME.fullmatch(name) or name in (HOST, MAPPED):
            faults.mistake("bad-name", f"'{name}' cannot be a device's name", at)
        elif name in spec.devices[:index]:
            first = spec.site["devices"][spec.devices.index(name)].span
            faults.mistake(
                "duplicate-name", f"a second device '{name}'", at, Note("first here", first)
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
        self.catalog, self.routes, self.faults = catalog, routes, faults
        self.placements = schedule.spec.placements
        self.cuts: dict[str, Cut] = {}
        self.phases: dict[str, tuple[str, ...]] = {}
        self.placed_as: dict[tuple[str, Site, str | None], Entry] = {}
        self.ranks = ranks_of(spec, values.scope, faults)
        self.devices = self.ranks.devices or device_names(spec)
        self.entries = Entries()
        self.buffers = Buffers(self.devices, values.count_name, faults)

    def programs(self) -> tuple[Program, ...]:
        """A program for each entry; the ops of all of them are made together."""
        scope = self.read_cuts()
        groups = groups_of(self.spec, self.faults)
        self.entries = entries_of(self.spec, groups, self.values.scope, self.faults)
        names = self.ranks.names(self.spec, scope)
        expander = Expander(self.catalog, self.faults)
        for context in self.ranks.contexts(self.spec, names, scope, self.values.scope):
            for number, (specs, site, _) in enumerate(groups.values()):
                with self.faults.collecting():
                    expander.expand(specs, site, replace(context, place=(number,)))
        drafts = expander.drafts
        if self.ranks.all:  # op by op, then rank
            drafts = sorted(drafts, key=lambda each: each.place)
        self.check_placements(expander)
        self.phases = self.read_phases(expander)
        self.buffers.learn(drafts)
        repeats = {each for specs, _, _ in groups.values() for each in indices(specs)}
        for each in names:
            with self.faults.collecting():
                self.buffers.make_unused(each, repeats)
        ops = [(draft, op) for draft in drafts for op in self.ops_of(draft, expander)]
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

    def check_entries(self, programs: tuple[Program, ...]) -> None:
        if self.faults.found:
            return
        for program in programs:
            if not program.ops and self.spec.entries:
                at = self.spec.site["entries"][program.entry].key
                self.faults.mistake("empty-entry", f"entry '{program.entry}' has no ops", at)
        check_flow(programs, self.faults)

    def finished(self, entry: str, ops: list[Op]) -> Program:
        used = {each.region.buffer for op in ops for each in op.accesses}
        made = self.buffers.made
        asked = {
            name for name, each in made.items() if name in used or each.role is not Role.SCRATCH
        }
        bases = {overlay[0] for name in asked if (overlay := made[name].overlay)}
        kept = {
            name: with_users(each, ops)
            for name, each in made.items()
            if name in asked or name in bases
        }
        capacity = self.values.capacity
        return Program(
            self.spec.name,
            self.devices,
            kept,
            tuple(ops),
            capacity,
            max(capacity, 1) if capacity is not None else 1,
            self.values.count_name,
            entry,
            self.ranks.placed,
        )

    def read_cuts(self) -> dict[str, Any]:
        """The named cuts; their counts join the scope as ``compute.count``."""
        scope = dict(self.values.scope)
        site, given = self.schedule.site["cuts"], self.schedule.spec.cuts
        for name in given:
            if name not in self.spec.cuts:
                hint = did_you_mean(name, self.spec.cuts)
                self.faults.mistake("unknown-cut", f"no cut '{name}'", site[name].key, hint=hint)
        for name, cut in self.spec.cuts.items():
            at = self.spec.site["cuts"][name]
            bounds: tuple[Fraction, ...] = (Fraction(0), Fraction(1))
            extent = 0
            with self.faults.collecting():
                extent = evaluate_count(cut.extent, self.values.scope, at["extent"].span)
            with self.faults.collecting():
                if name in given:
                    bounds = bounds_of(given[name], self.values.scope, site[name])
            self.cuts[name] = Cut(name, extent, bounds, at.key)
            scope[f"{name}.count"] = len(bounds) - 1
        return scope

    def check_placements(self, expander: Expander) -> None:
        # An op may be written and yet not be there: the count of its repeat was at fault.
        written = {*written_ops(self.spec.site.document.data)}
        for name in self.placements:
            if name not in expander.keys and name not in written:
                at = self.schedule.site[name].key
                hint = did_you_mean(name, (*expander.keys, *GLOBALS))
                self.faults.mistake("unknown-op", f"'{name}' is no op of this spec", at, hint=hint)

    def read_phases(self, expander: Expander) -> dict[str, tuple[str, ...]]:
        """Phase -> the ops of all iterations that it names, each in one phase at most."""
        names: dict[str, list[str]] = {}
        for draft in expander.drafts:
            names.setdefault(draft.key, []).append(draft.name)
        written = {*expander.keys, *written_ops(self.spec.site.document.data)}
        first: dict[str, Span] = {}
        for phase, keys in self.spec.phases.items():
            site = self.spec.site["phases"][phase]
            if not NAME.fullmatch(phase):
                self.faults.mistake("bad-name", f"'{phase}' cannot be a phase's name", site.key)
            for index, key in enumerate(keys):
                self.check_phase_op(key, site[index].span, first, written)
        return {
            phase: tuple(name for key in keys for name in names.get(key, ()))
            for phase, keys in self.spec.phases.items()
        }

    def check_phase_op(
        self, key: str, at: Span, first: dict[str, Span], written: Iterable[str]
    ) -> None:
        if key in first:
            text = f"'{key}' is in a phase already: its time counts once"
            self.faults.mistake("phase-conflict", text, at, Note("first here", first[key]))
        elif key not in written:
            hint = did_you_mean(key, written)
            self.faults.mistake("unknown-op", f"'{key}' is no op of this spec", at, hint=hint)
        first.setdefault(key, at)

    def ops_of(self, draft: Draft, expander: Expander) -> Iterable[Op]:
        """The op of a draft, unless something is wrong with it."""
        found: list[Op] = []
        with self.faults.collecting(draft.context.notes):
            op = self.bound(draft)
            placed = self.placed(op, draft, expander)
            found.append(placed)
        return found

    def bound(self, draft: Draft) -> Op:
        spec, site = draft.spec, draft.site
        if isinstance(spec, KernelOpSpec):
            return self.kernel_op(draft, spec, site)
        if isinstance(spec, TransferOpSpec):
            return self.transfer_op(draft, spec, site["transfer"])
        if isinstance(spec, FillOpSpec):
            return self.fill_op(draft, spec, site["fill"])
        return self.extern_op(draft, spec, site)

    def device(self, word: str | None, at: Site, draft: Draft) -> str:
        if draft.context.rank is not None:
            if word is not None:
                raise placed_by_rank(draft.key, at.key)
            return draft.context.rank.device
        if word is None:
            raise error("missing-field", "this needs a field 'device'", draft.site.key)
        name = evaluate_word(word, draft.context.scope, at.span)
        if name not in self.devices:
            hint = did_you_mean(str(name), self.devices)
            hint = hint or f"the devices are {', '.join(self.devices)}"
            raise error("unknown-device", f"unknown device '{name}'", at.span, hint=hint)
        return str(name)

    def kernel_op(self, draft: Draft, spec: KernelOpSpec, site: Site) -> Op:
        assert draft.contract is not None
        device = self.device(spec.device, site["device"], draft)
        args: dict[str, Argument] = {}
        for name, use in draft.uses.items():
            peers = self.buffers.peers(use, draft) if use.peers else ()
            buffer = peers[0] if peers else None
            if use.declared and not use.peers:
                buffer = self.buffers.of(use, draft)
            rows = self.blocks(use, buffer, site["args"][name]) if use.blocks else None
            if use.row is not None:
                rows = Rows(RowsKind.ROW, use.row)
            args[name] = Argument(buffer, rows, use.span, peers=peers)
            self.check_optional(name, use, buffer, draft)
        options, spans = self.options(spec, site["options"], draft)
        bound = bind(
            draft.contract,
            args,
            options=options,
            scalars=draft.scalars,
            span=draft.span,
            device=device,
            spans={**draft.spans, **spans},
        )
        kernel = bound.kernel
        if spec.estimate:
            kernel = replace(kernel, estimate=self.estimate(spec, site["estimate"], draft))
        return self.op(draft, device, kernel, bound.accesses, bound.axis)

    def estimate(self, spec: KernelOpSpec, at: Site, draft: Draft) -> dict[str, int | float]:
        """What this op puts in the place of its contract's estimates."""
        assert draft.contract is not None
        known = draft.contract.cost.estimate
        for name in spec.estimate:
            if name not in known:
                what = f"kernel '{draft.contract.name}' estimates no '{name}'"
                hint = did_you_mean(name, known) or (
                    f"it estimates {', '.join(known)}" if known else "its cost needs no estimate"
                )
                raise error("unknown-name", what, at[name].key, hint=hint)
        return {
            name: evaluate_number(value, draft.context.scope, at[name].span)
            for name, value in spec.estimate.items()
        }

    def options(
        self, spec: KernelOpSpec, at: Site, draft: Draft
    ) -> tuple[dict[str, Any], dict[str, Span]]:
        assert draft.contract is not None
        options: dict[str, Any] = {}
        for name, value in spec.options.items():
            declared = draft.contract.options.get(name)
            is_text = declared is None or isinstance(declared.default, str)
            evaluated = evaluate_word if is_text else evaluate_number
            options[name] = evaluated(value, draft.context.scope, at[name].span)
        known = draft.contract.options
        return options, {name: at[name].span if name in known else at[name].key for name in options}

    def check_optional(self, name: str, use: Use, buffer: Buffer | None, draft: Draft) -> None:
        contract = draft.contract
        argument = contract.args.get(name) if contract else None
        if contract is None or argument is None or argument.optional:
            return
        if buffer is not None and buffer.is_optional:
            raise error(
                "missing-argument",
                f"kernel '{contract.name}' always needs '{name}', but '{buffer.name}' is optional",
                use.span,
                notes=[Note("optional here", buffer.span)],
            )
        if buffer is None and use.declared is not None:
            raise error(
                "missing-argument",
                f"kernel '{contract.name}' needs '{name}', but '{use.declared.name}' is left out",
                use.span,
                notes=[Note("its condition is false", use.declared.site["if"].span)],
            )

    def blocks(self, use: Use, buffer: Buffer | None, at: Site) -> Rows:
        cut = self.cut(str(use.blocks), at["blocks"].span)
        factor = 1
        if buffer is not None and cut.extent:
            factor = buffer.rows // cut.extent
            follows = factor * factor_of(cut.extent)
            if buffer.rows % cut.extent or buffer.per_count != follows:
                raise error(
                    "wrong-cut",
                    f"'{buffer.name}' has {buffer.rows} rows, which '{cut.name}' does not divide: "
                    f"it cuts {cut.extent} rows",
                    at["blocks"].span,
                    notes=[Note("cut here", cut.span)],
                )
        return Rows(RowsKind.BLOCKS, factor, cut.bounds)

    def cut(self, name: str, span: Span) -> Cut:
        if name not in self.cuts:
            hint = did_you_mean(name, self.cuts) or (
                f"the cuts are {', '.join(self.cuts)}" if self.cuts else "add it under cuts:"
            )
            raise error("unknown-cut", f"no cut '{name}'", span, hint=hint)
        return self.cuts[name]

    def transfer_op(self, draft: Draft, spec: TransferOpSpec, at: Site) -> Op:
        pairs: list[tuple[Buffer, Buffer]] = []
        for index in range(len(draft.uses) // 2):
            source = self.needed(draft.uses[f"source.{index}"], draft)
            target = self.needed(draft.uses[f"target.{index}"], draft)
            check_pair(source, target, draft.uses[f"target.{index}"].span)
            pairs.append((source, target))
        for (source, target), use in zip(pairs, list(draft.uses.values())[::2], strict=True):
            if (source.device, target.device) != (pairs[0][0].device, pairs[0][1].device):
                text = "the pairs of one transfer go from one device to one other"
                raise error("bad-transfer", text, use.span)
        self.check_apart(pairs, draft)
        wire = self.wire(spec, pairs, at, draft)
        accesses = [
            Access(name, whole(buffer), mode, SPLIT, draft.uses[name].span)
            for index, (source, target) in enumerate(pairs)
            for name, buffer, mode in (
                (f"source.{index}", source, Mode.READ),
                (f"target.{index}", target, Mode.WRITE),
            )
        ]
        first = pairs[0][0]
        work = Transfer("auto", wire, is_small=spec.transfer.pairs is not None)
        axis = Axis(first.rows, first.per_count)
        return self.op(draft, first.device, work, tuple(accesses), axis)

    def check_apart(self, pairs: list[tuple[Buffer, Buffer]], draft: Draft) -> None:
        """A transfer's pairs are in no order, so nothing may lie where one of them arrives."""
        ends = list(zip(draft.uses.values(), chain.from_iterable(pairs), strict=True))
        for (first, (one, before)), (second, (two, buffer)) in combinations(enumerate(ends), 2):
            if first % 2 == second % 2 == 0 or not share_bytes(before, buffer):
                continue
            text = f"'{buffer.name}' is the target of two pairs"
            if buffer.name != before.name:
                text = f"'{before.name}' and '{buffer.name}' share bytes, and one is a target"
            notes = [Note("given here first", one.span)]
            raise error("aliased-argument", text, two.span, notes=notes)

    def needed(self, use: Use, draft: Draft) -> Buffer:
        buffer = self.buffers.of(use, draft) if use.declared else None
        if buffer is None:
            name = f"'{use.declared.name}'" if use.declared else "null"
            raise error("missing-argument", f"{name} is left out, but it is needed here", use.span)
        return buffer

    def wire(
        self,
        spec: TransferOpSpec,
        pairs: list[tuple[Buffer, Buffer]],
        at: Site,
        draft: Draft,
    ) -> str | None:
        span = at["wire"].span
        name = evaluate_word(spec.transfer.wire, draft.context.scope, span)
        if name is None:
            return None
        if name not in DTYPES:
            hint = did_you_mean(str(name), DTYPES)
            raise error("unknown-dtype", f"'{name}' is no dtype", span, hint=hint)
        for source, target in pairs:
            if not DTYPES[source.dtype].is_float:
                raise error(
                    "wire-on-integers",
                    f"'{source.name}' is {source.dtype}: integers travel as they are",
                    span,
                    notes=[Note("declared here", source.span)],
                    hint="leave wire out, or move the floats in a transfer of their own",
                )
            for end in (source, target):
                if end.dtype != name and not {end.dtype, name} <= set(CONVERTIBLE):
                    text = f"'{end.name}' is {end.dtype}, which cannot travel as {name}"
                    raise error("bad-wire", text, span, notes=[Note("declared here", end.span)])
        return str(name)

    def fill_op(self, draft: Draft, spec: FillOpSpec, at: Site) -> Op:
        target = self.needed(draft.uses["target"], draft)
        if target.device == MAPPED:
            text = f"'{target.name}' is mapped host memory, which no device fills"
            raise error("wrong-memory", text, at["target"].span)
        value = evaluate_number(spec.fill.value, draft.context.scope, at["value"].span)
        if isinstance(value, float) and not DTYPES[target.dtype].is_float:
            text = f"'{target.name}' is {target.dtype}: it cannot be filled with {value}"
            raise error("bad-value", text, at["value"].span)
        least, most = DTYPES[target.dtype].limits
        if not least <= value <= most:
            text = (
                f"'{target.name}' is {target.dtype}, which holds {least} to {most}: "
                f"it cannot be filled with {value}"
            )
            raise error("bad-value", text, at["value"].span)
        access = Access("target", whole(target), Mode.WRITE, SPLIT, draft.uses["target"].span)
        axis = Axis(target.rows, target.per_count)
        return self.op(draft, target.device, Fill(value), (access,), axis)

    def extern_op(self, draft: Draft, spec: ExternOpSpec, site: Site) -> Op:
        at = site["extern"]
        device = self.device(spec.device, site["device"], draft)
        scope = draft.context.scope
        axis = Axis()
        if spec.extern.axis is not None:
            extent = evaluate_count(spec.extern.axis, scope, at["axis"].span)
            axis = Axis(int(extent), factor_of(extent))
        for part in ("function", "reference"):
            module, colon, name = str(getattr(spec.extern, part)).partition(":")
            if not colon or not module or not name.isidentifier():
                text = f"expected module:function, found '{getattr(spec.extern, part)}'"
                raise error("bad-value", text, at[part].span)
        accesses: list[Access] = []
        for name, each in spec.extern.args.items():
            use = draft.uses[name]
            buffer = self.needed(use, draft)
            rows = self.extern_rows(name, each.rows, buffer, axis, at["args"][name], draft)
            accesses.append(Access(name, whole(buffer), Mode(each.access), rows, use.span))
        scalars = {
            name: evaluate_word(value, scope, at["scalars"][name].span)
            for name, value in spec.extern.scalars.items()
        }
        work = Extern(spec.extern.function, spec.extern.reference, scalars)
        return self.op(draft, device, work, tuple(accesses), axis)

    def extern_rows(
        self, name: str, spec: Any, buffer: Buffer, axis: Axis, at: Site, draft: Draft
    ) -> Rows:
        if spec.kind != "split":
            return Rows(RowsKind(spec.kind))
        factor = int(evaluate_number(spec.factor, draft.context.scope, at["rows"].span))
        is_right = buffer.rows == factor * axis.extent
        if not is_right or buffer.per_count != factor * axis.per_count:
            text = (
                f"'{buffer.name}' has {buffer.rows} rows, but '{name}' is split with {factor} "
                f"for each of {axis.extent} rows of the axis"
            )
            raise error("bad-rows", text, at["rows"].span)
        return Rows(RowsKind.SPLIT, factor)

    def op(
        self, draft: Draft, device: str, work: Work, accesses: tuple[Access, ...], axis: Axis
    ) -> Op:
        name, family = draft.name, draft.family
        return Op(name, name, device, work, accesses, axis, span=draft.span, family=family)

    def placed(self, op: Op, draft: Draft, expander: Expander) -> Op:
        """The op with its entry of the schedule."""
        spec = self.placements.get(draft.key) or PlacementSpec()
        site = self.schedule.site[draft.key]
        cut = None
        if draft.spec.cut is not None:
            at = draft.site["cut"]
            word = evaluate_word(draft.spec.cut, draft.context.scope, at.span)
            cut = self.cut(str(word), at.span)
            if (op.axis.extent, op.axis.per_count) != (cut.extent, factor_of(cut.extent)):
                raise error(
                    "wrong-cut",
                    f"'{draft.key}' runs over {op.axis.extent} rows, but '{cut.name}' cuts "
                    f"{int(cut.extent)}",
                    at.span,
                    notes=[Note("cut here", cut.span)],
                )
        entry = self.entry(op, draft, spec, site, cut)
        after: tuple[str, ...] = ()
        if spec.after is not None:
            with self.faults.collecting():
                names = expander.taken
                after = tuple(after_of(spec, site["after"], draft.context, op, names))
        op = placed(op, entry, after)
        self.check_piece_rows(op, draft, site, cut)
        return op

    def entry(
        self, op: Op, draft: Draft, spec: PlacementSpec, site: Site, cut: Cut | None
    ) -> Entry:
        """What the schedule says, evaluated once if it is the same in all iterations."""
        key = draft.key, draft.site, cut.name if cut else None
        if key in self.placed_as:
            return self.placed_as[key]
        root = draft.context.root
        entry = entry_of(op, spec, site, root, cut, self.routes, self.faults)
        if not mentions(spec, draft.context.indices):
            self.placed_as[key] = entry
        return entry

    def check_piece_rows(self, op: Op, draft: Draft, site: Site, cut: Cut | None) -> None:
        where = cut.span if cut else site["pieces"].key
        of = len(op.placement.pieces) - 1
        if of > 1:
            check_pieces(op, draft, where if site.is_written or cut else draft.span)
        for each in op.accesses:
            if each.rows.kind is not RowsKind.PIECE:
                continue
            rows = self.buffers.made[each.region.buffer].rows
            if rows != of:
                raise error(
                    "wrong-shape",
                    f"'{each.argument}' has one row for each piece: '{draft.key}' is cut into "
                    f"{of}, but '{each.region.buffer}' has {rows}",
                    each.span,
                    notes=[Note("cut here", where)] if of > 1 else (),
                )

    def settings(self) -> Settings:
        spec, site = self.schedule.spec, self.schedule.site
        chosen: dict[str, Any] = {"max_streams": 4}
        choices = {
            "emit": tuple(each.value for each in Emit),
            "memory": ("concurrent", "tight"),
            "units": tuple(each.value for each in Division),
            "sync": tuple(each.value for each in Signalling),
            "launch": tuple(each.value for each in LaunchContract),
        }
        for name, known in choices.items():
            with self.faults.collecting():
                span = site[name].span
                chosen[name] = evaluate_word(getattr(spec, name), self.values.scope, span)
                if chosen[name] not in known:
                    hint = did_you_mean(str(chosen[name]), known)
                    text = f"'{name}' is one of {', '.join(known)}, not {kind(chosen[name])}"
                    chosen[name] = known[0]
                    raise error("bad-value", text, span, hint=hint)
        with self.faults.collecting():
            span = site["max_streams"].span
            chosen["max_streams"] = int(evaluate_count(spec.max_streams, self.values.scope, span))
            if chosen["max_streams"] < 1:
                raise error("bad-value", "'max_streams' must be at least 1", span)
        if chosen["units"] == "rank" and self.spec.ranks is None:
            text = "'units' cannot be rank: this spec has no ranks"
            self.faults.mistake("bad-value", text, site["units"].span)
        elif chosen["units"] == "rank" and (pair := self.ranks.together()) is not None:
            text = (
                f"'units' cannot be rank: ranks {pair[0]} and {pair[1]} are both on "
                f"'{self.ranks.placed[pair[0]]}', and units on one device could wait for each "
                "other for ever"
            )
            hint = "use units: device, or give each rank a device of its own"
            self.faults.mistake("bad-value", text, site["units"].span, hint=hint)
        if chosen["sync"] == "memops" and chosen["launch"] == "free":
            text = "'sync' cannot be memops where 'launch' is free: its flags are used up"
            hint = "a unit may be a replay ahead of another: use sync: flags"
            self.faults.mistake("bad-value", text, site["sync"].span, hint=hint)
        return Settings(
            emit=Emit(chosen["emit"]),
            memory=str(chosen["memory"]),
            max_streams=chosen["max_streams"],
            units=Division(chosen["units"]),
            sync=Signalling(chosen["sync"]),
            launch=LaunchContract(chosen["launch"]),
        )


def whole(buffer: Buffer) -> Region:
    return Region(buffer.name, 0, buffer.nbytes)


def indices(ops: Any) -> set[str]:
    """The indices of all repeats."""
    found: set[str] = set()
    for each in ops:
        if hasattr(each, "body"):
            found |= {each.index} | indices(each.body)
    return found


def check_pair(source: Buffer, target: Buffer, span: Span) -> None:
    notes = [Note("the source is here", source.span), Note("the target is here", target.span)]
    for end in (source, target):
        if end.device == MAPPED:
            text = f"'{end.name}' is mapped host memory: a transfer goes from device to device"
            raise error("bad-transfer", text, span, notes=[Note("declared here", end.span)])
    if source.device == target.device:
        text = f"'{source.name}' and '{target.name}' are both on '{source.device}'"
        raise error("bad-transfer", text, span, notes=notes, hint="use the kernel 'convert'")
    if source.shape != target.shape or source.per_count != target.per_count:
        text = (
            f"'{source.name}' is {list(source.shape)}, '{target.name}' is {list(target.shape)}: "
            "a transfer keeps the shape"
        )
        if source.shape == target.shape:
            text = f"the rows of '{source.name}' and '{target.name}' follow the count differently"
        raise error("wrong-shape", text, span, notes=notes)
    if source.dtype != target.dtype and not {source.dtype, target.dtype} <= set(CONVERTIBLE):
        text = f"{source.dtype} of '{source.name}' cannot become {target.dtype}"
        raise error("wrong-dtype", text, span, notes=notes)


def with_users(buffer: Buffer, ops: list[Op]) -> Buffer:
    """Mapped memory knows the devices that use it."""
    if buffer.device != MAPPED:
        return buffer
    near = {op.device for op in ops for each in op.accesses if each.region.buffer == buffer.name}
    return replace(buffer, near=tuple(sorted(near - {HOST})))
