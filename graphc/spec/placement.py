"""The schedule's entry for an op -> its placement: cuts, routes, streams, order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphc.ir import (
    HOST,
    Axis,
    Buffer,
    Extern,
    Kernel,
    Mode,
    Op,
    Placement,
    RowsKind,
    Transfer,
)
from graphc.kernels.contract import Contract
from graphc.routes import RouteSpec
from graphc.spec.cuts import Cut, bounds_of, cut_named
from graphc.spec.expand import Context, Draft
from graphc.spec.faults import ITERATION, Faults
from graphc.spec.model import GLOBALS, PlacementSpec
from graphc.spec.values import ScheduleInForce, entry, listed
from graphc.text.diagnostics import Note, Span, error
from graphc.text.expr import (
    Scope,
    evaluate_count,
    evaluate_number,
    evaluate_word,
    factor_of,
    mentions,
)
from graphc.text.load import Site, kind
from graphc.text.suggest import did_you_mean

STREAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the schedule says of an op, but for what it comes after."""

    placement: Placement
    route: str | None = None  # of a transfer
    streams: Mapping[str, str] = field(default_factory=dict)  # of its steps


class Placements:
    """The schedule's entries for ops; one that is the same in all iterations is read once."""

    def __init__(
        self,
        schedule: ScheduleInForce,
        cuts: Mapping[str, Cut],
        routes: Mapping[str, RouteSpec],
        faults: Faults,
    ) -> None:
        self.specs, self.site = schedule.spec.placements, schedule.site
        self.cuts, self.routes, self.faults = cuts, routes, faults
        self.entries: dict[tuple[str, Site, str | None], Entry] = {}

    def check_keys(self, keys: Iterable[str], written: Iterable[str]) -> None:
        """Entries are for ops that are ``written``; hints name those that are there (``keys``)."""
        given = entry(self.site.document.data, self.site.path)
        for name in self.specs:
            is_placement = isinstance(given[name], dict)
            if name not in written:
                hint = did_you_mean(name, (*keys, *GLOBALS))
                text = f"'{name}' is no op of this spec"
                text += "" if is_placement else ", and no value of its schedule"
                self.faults.mistake("unknown-op", text, self.site[name].key, hint=hint)
            elif not is_placement:
                text = f"expected a mapping of fields, found {kind(given[name])}"
                self.faults.mistake("bad-value", text, self.site[name].span)

    def placed(
        self, op: Op, draft: Draft, ops: Mapping[str, Span], buffers: Mapping[str, Buffer]
    ) -> Op:
        """The op with its entry of the schedule, which may name any of the ``ops``."""
        spec = self.specs.get(draft.key) or PlacementSpec()
        site = self.site[draft.key]
        cut = self.cut_of(op, draft)
        entry = self.entry(op, draft, spec, site, cut)
        after: tuple[str, ...] = ()
        if spec.after is not None:
            with self.faults.collecting():
                after = tuple(after_of(spec, site["after"], draft.context, op, ops))
        op = with_entry(op, entry, after)
        check_piece_rows(op, draft, site, cut, buffers)
        return op

    def cut_of(self, op: Op, draft: Draft) -> Cut | None:
        """The cut by which an op goes: it cuts as many rows as the op has."""
        if draft.spec.cut is None:
            return None
        at = draft.site["cut"]
        word = evaluate_word(draft.spec.cut, draft.context.scope, at.span)
        cut = cut_named(str(word), self.cuts, at.span)
        if (op.axis.extent, op.axis.per_count) != (cut.extent, factor_of(cut.extent)):
            raise error(
                "wrong-cut",
                f"'{draft.key}' runs over {op.axis.extent} rows, but '{cut.name}' cuts "
                f"{int(cut.extent)}",
                at.span,
                notes=[Note("cut here", cut.span)],
            )
        return cut

    def entry(
        self, op: Op, draft: Draft, spec: PlacementSpec, site: Site, cut: Cut | None
    ) -> Entry:
        """What the schedule says, evaluated once if it is the same in all iterations."""
        key = draft.key, draft.site, cut.name if cut else None
        if key in self.entries:
            return self.entries[key]
        root = draft.context.root
        entry = entry_of(op, spec, site, root, cut, self.routes, self.faults)
        if not mentions(spec, draft.context.indices):
            self.entries[key] = entry
        return entry


def entry_of(
    op: Op,
    spec: PlacementSpec,
    site: Site,
    scope: Scope,
    cut: Cut | None,
    routes: Mapping[str, RouteSpec],
    faults: Faults,
) -> Entry:
    """What the schedule says of an op; each field's mistakes are found on their own."""
    placement = Placement(pieces=cut.bounds) if cut else Placement()
    route: str | None = None
    streams: dict[str, str] = {}
    with faults.collecting():
        if spec.pieces is not None and cut is not None:
            raise error(
                "bad-pieces",
                f"'{op.step}' is cut by '{cut.name}': its pieces are set there",
                site["pieces"].key,
                notes=[Note("the cut is here", cut.span)],
                hint=f"set cuts: ({cut.name}: ...)",
            )
        if spec.pieces is not None:
            bounds = bounds_of(spec.pieces, scope, site["pieces"])
            placement = replace(placement, pieces=bounds)
    with faults.collecting():
        route, streams = routed(op, spec, site, scope, routes)
    with faults.collecting():
        if isinstance(spec.stream, str):
            placement = replace(placement, stream=stream_name(spec.stream, scope, site["stream"]))
    with faults.collecting():
        if spec.blocks is not None:
            blocks = evaluate_count(spec.blocks, scope, site["blocks"].span)
            if not isinstance(op.work, Kernel | Transfer):
                raise error("bad-value", "'blocks' is for kernels", site["blocks"].span)
            # 0: as many as the kernel asks for, so that a param can say so.
            placement = replace(placement, blocks=int(blocks) or None)
    with faults.collecting():
        if spec.priority is not None:
            priority = evaluate_number(spec.priority, scope, site["priority"].span)
            if not isinstance(priority, int):
                raise error("bad-value", "'priority' is a whole number", site["priority"].span)
            placement = replace(placement, priority=int(priority))
    return Entry(placement, route, streams)


def stream_name(word: str, scope: Scope, site: Site) -> str:
    name = evaluate_word(word, scope, site.span)
    if not isinstance(name, str) or not STREAM.fullmatch(name) or name == HOST:
        raise error("bad-stream", f"{kind(name)} cannot be a stream's name", site.span)
    return name


def routed(
    op: Op, spec: PlacementSpec, site: Site, scope: Scope, routes: Mapping[str, RouteSpec]
) -> tuple[str | None, dict[str, str]]:
    """The route of a transfer, and the streams of its steps."""
    if not isinstance(op.work, Transfer):
        if spec.route is not None:
            raise error("bad-route", f"'{op.step}' is no transfer: no route", site["route"].key)
        if isinstance(spec.stream, dict):
            text = f"'{op.step}' has no steps: name one stream"
            raise error("bad-stream", text, site["stream"].span)
        return None, {}
    route = evaluate_word(spec.route or AUTO, scope, site["route"].span)
    if route != AUTO and route not in routes:
        known = (AUTO, *routes)
        hint = did_you_mean(str(route), known) or f"the routes are {', '.join(known)}"
        raise error("unknown-route", f"unknown route '{route}'", site["route"].span, hint=hint)
    if isinstance(spec.stream, str):
        text = f"'{op.step}' has steps on two devices: name a stream for each step"
        steps = [each.name for each in routes[route].steps] if route in routes else ["down", "up"]
        hint = f"write stream: with {', '.join(f'{each}: NAME' for each in steps)}"
        raise error("bad-stream", text, site["stream"].span, hint=hint)
    streams: dict[str, str] = {}
    for step, word in (spec.stream or {}).items():
        at = site["stream"][step]
        known_steps = steps_of(route, op.work, routes)
        if step not in known_steps:
            hint = did_you_mean(step, known_steps) or f"its steps are {', '.join(known_steps)}"
            raise error("bad-stream", f"route '{route}' has no step '{step}'", at.key, hint=hint)
        streams[step] = stream_name(word, scope, at)
    return str(route), streams


def steps_of(route: Any, work: Transfer, routes: Mapping[str, RouteSpec]) -> list[str]:
    """The steps that the transfer can have: of ``auto``, those of every route."""
    found = list(routes.values()) if route == AUTO else [routes[route]]
    if work.is_small:
        found += [routes[each.small] for each in found if each.small and each.small in routes]
    return list(dict.fromkeys(step.name for each in found for step in each.steps))


def after_of(
    spec: PlacementSpec, site: Site, context: Context, op: Op, names: Mapping[str, Span]
) -> Iterator[str]:
    for index, name in enumerate(listed(spec.after, "ops", context.root, site.span)):
        span = site[index].span
        found = resolved(str(name), context, names)
        if found is None:
            ours = [each.removeprefix(context.prefix) for each in names]
            hint = did_you_mean(str(name), ours)
            raise error("unknown-op", f"'{name}' is no op of this iteration", span, hint=hint)
        if found == op.step:
            raise error("bad-after", f"'{name}' cannot come after itself", span)
        yield found


def resolved(name: str, context: Context, names: Mapping[str, Span]) -> str | None:
    """The op of that name in the same iteration, or around it."""
    parts = context.prefix.split("/")[:-1]
    for depth in range(len(parts), -1, -1):
        full = "/".join([*parts[:depth], name])
        if full in names:
            return full
    return None


def with_entry(op: Op, entry: Entry, after: tuple[str, ...]) -> Op:
    """The op with what its entry says."""
    work, placement = op.work, entry.placement
    if isinstance(work, Transfer) and entry.route is not None:
        work = Transfer(entry.route, work.wire, work.is_small, entry.streams)
    if after:
        placement = replace(placement, after=after)
    return Op(
        op.name,
        op.step,
        op.device,
        work,
        op.accesses,
        op.axis,
        op.piece,
        placement,
        op.span,
        op.family,
    )


def check_piece_rows(
    op: Op, draft: Draft, site: Site, cut: Cut | None, buffers: Mapping[str, Buffer]
) -> None:
    """An op that is cut can be, and what has a row for each piece has as many."""
    where = cut.span if cut else site["pieces"].key
    of = len(op.placement.pieces) - 1
    if of > 1:
        check_pieces(op, draft, where if site.is_written or cut else draft.span)
    for each in op.accesses:
        if each.rows.kind is not RowsKind.PIECE:
            continue
        rows = buffers[each.region.buffer].rows
        if rows != of:
            raise error(
                "wrong-shape",
                f"'{each.argument}' has one row for each piece: '{draft.key}' is cut into "
                f"{of}, but '{each.region.buffer}' has {rows}",
                each.span,
                notes=[Note("cut here", where)] if of > 1 else (),
            )


def check_pieces(op: Op, draft: Draft, span: Span) -> None:
    """An op in several pieces has an axis, and its pieces write apart from each other."""
    of = len(op.placement.pieces) - 1
    if not has_axis(draft.contract, op):
        why, hint = why_whole(draft, op)
        text = f"'{draft.key}' cannot be cut into {of} pieces: {why}"
        raise error("cannot-cut", text, span, notes=[Note("the op is here", draft.span)], hint=hint)
    for each in op.accesses:
        is_apart = each.rows.kind in (RowsKind.SPLIT, RowsKind.PIECE)
        if each.mode.is_write and not is_apart and each.mode not in (Mode.SCATTER, Mode.ACCUMULATE):
            text = (
                f"'{draft.key}' cannot be cut into {of} pieces: each would write all of "
                f"'{each.argument}'"
            )
            is_extern = isinstance(op.work, Extern)
            hint = "write rows: split where each piece has rows of its own" if is_extern else None
            notes = [Note("this argument", each.span)]
            raise error("cannot-cut", text, span, notes=notes, hint=hint)


def why_whole(draft: Draft, op: Op) -> tuple[str, str | None]:
    """Why an op without a split argument stays whole, and what to do."""
    if draft.contract is not None:
        return f"kernel '{draft.contract.name}' has no axis", None
    if not isinstance(op.work, Extern):
        return f"'{draft.key}' has no axis", None
    if op.axis == Axis():
        return "the extern has no axis", "give it the rows that are cut: axis: n"
    return (
        "none of its arguments has rows that are split",
        "write rows: split for each argument of which a piece touches its own rows only",
    )


def has_axis(contract: Contract | None, op: Op) -> bool:
    if contract is not None:
        return contract.axis is not None
    return any(each.rows.kind is RowsKind.SPLIT for each in op.accesses)


def check_streams(
    ops: Iterable[Op],
    buffers: Mapping[str, Buffer],
    routes: Mapping[str, RouteSpec],
    site: Site,
    faults: Faults,
) -> None:
    """A named stream belongs to one device."""
    owners: dict[str, tuple[str, Span]] = {}
    for op in ops:
        for stream, device, where in named_streams(op, buffers, routes, site):
            owner, first = owners.setdefault(stream, (device, where))
            if owner != device:
                text = f"stream '{stream}' runs work of '{owner}' and of '{device}'"
                faults.mistake("bad-stream", text, where, Note(f"it is '{owner}' here", first))


def named_streams(
    op: Op, buffers: Mapping[str, Buffer], routes: Mapping[str, RouteSpec], site: Site
) -> Iterator[tuple[str, str, Span]]:
    is_named = isinstance(op.work, Transfer) and op.work.streams and op.work.route != AUTO
    if op.placement.stream is None and not is_named:
        return
    at = site[ITERATION.sub("", op.step)]["stream"]
    if op.placement.stream is not None:
        yield op.placement.stream, op.device, at.span
    if not isinstance(op.work, Transfer) or op.work.route == AUTO:
        return
    ends = {"source": op.device, "target": buffers[op["target.0"].region.buffer].device}
    for step in routes[op.work.route].steps:
        if step.name in op.work.streams:
            yield op.work.streams[step.name], ends[step.on], at[step.name].span
