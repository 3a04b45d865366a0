"""The schedule's entry for an op -> its placement: cuts, routes, streams, order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from math import lcm
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
from graphc.spec.expand import Context, Draft
from graphc.spec.faults import ITERATION, Faults
from graphc.spec.model import PlacementSpec
from graphc.text.diagnostics import Note, Span, error
from graphc.text.expr import Scope, evaluate, evaluate_count, evaluate_number, evaluate_word
from graphc.text.load import Site, kind
from graphc.text.suggest import did_you_mean

MOST_PIECES = 65536
MOST_PARTS = 2**31 - 1  # kernels are told in 32 bits
FRACTION = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")
STREAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Cut:
    """A named partition: what it cuts, and the bounds of its parts from 0 to 1."""

    name: str
    extent: int
    bounds: tuple[Fraction, ...]
    span: Span


def bounds_of(pieces: Any, scope: Scope, site: Site) -> tuple[Fraction, ...]:
    """The bounds of pieces: of equal ones from their number, else from their shares."""
    if isinstance(pieces, list):
        return bounds_of_shares(pieces, scope, site)
    count = evaluate_word(pieces, scope, site.span)
    if isinstance(count, list):
        return bounds_of_shares(count, scope, site)
    count = evaluate_count(count, scope, site.span)
    if not 1 <= count <= MOST_PIECES:
        raise error("bad-pieces", f"pieces go from 1 to {MOST_PIECES}, not {count}", site.span)
    return tuple(Fraction(index, count) for index in range(count + 1))


def bounds_of_shares(shares: list[Any], scope: Scope, site: Site) -> tuple[Fraction, ...]:
    """
    >>> from graphc.text.load import parse_yaml
    >>> site = parse_yaml("a: 1", "f").root
    >>> [str(bound) for bound in bounds_of_shares(["1/4", 0.25, "1/2"], {}, site)]
    ['0', '1/4', '1/2', '1']
    """
    if len(shares) > MOST_PIECES:
        raise error("bad-pieces", f"at most {MOST_PIECES} pieces are known", site.span)
    found = [share_of(each, scope, site[index].span) for index, each in enumerate(shares)]
    total = sum(found, Fraction(0))
    if total != 1:
        hint = None
        if all(each.denominator == 1 for each in found):
            hint = f"write {', '.join(str(each / total) for each in found)}"
        raise error("bad-pieces", f"the shares add up to {total}, not to 1", site.span, hint=hint)
    bounds = (Fraction(0), *accumulate(found))
    parts = lcm(*(each.denominator for each in bounds))
    if parts > MOST_PARTS:
        text = f"the shares are counted in parts of 1/{parts}: at most {MOST_PARTS} parts are known"
        hint = "write shares with a smaller common denominator"
        raise error("bad-pieces", text, site.span, hint=hint)
    return bounds


def share_of(share: Any, scope: Scope, span: Span) -> Fraction:
    match = FRACTION.fullmatch(share.strip()) if isinstance(share, str) else None
    if match and int(match[2]):
        found = Fraction(int(match[1]), int(match[2]))
    else:
        value = evaluate_number(share, scope, span)
        found = Fraction(str(value)).limit_denominator(10**9)
    if found <= 0:
        raise error("bad-pieces", f"a share must be above 0, not {share}", span)
    return found


@dataclass(frozen=True, slots=True)
class Entry:
    """What the schedule says of an op, but for what it comes after."""

    placement: Placement
    route: str | None = None  # of a transfer
    streams: Mapping[str, str] = field(default_factory=dict)  # of its steps


def placed(op: Op, entry: Entry, after: tuple[str, ...]) -> Op:
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
    listed = spec.after
    if isinstance(listed, str):
        listed = evaluate(listed.removeprefix("="), context.root, site.span)
    if not isinstance(listed, list):
        raise error("bad-value", f"expected a list of ops, found {kind(listed)}", site.span)
    for index, name in enumerate(listed):
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
