"""Drafts -> ops: every argument bound to its buffer, every kernel to its contract.

Regions are whole buffers; transfers are still transfers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphc.dtypes import DTYPES
from graphc.ir import (
    MAPPED,
    SPLIT,
    Access,
    Axis,
    Buffer,
    Extern,
    Fill,
    Mode,
    Op,
    Rows,
    RowsKind,
    Transfer,
    Work,
)
from graphc.kernels.bind import bind
from graphc.kernels.call import Argument
from graphc.regions import Region
from graphc.spec.buffers import Buffers
from graphc.spec.cuts import Cut, cut_named
from graphc.spec.devices import device_named, placed_by_rank
from graphc.spec.expand import Draft, Use
from graphc.spec.model import ExternOpSpec, FillOpSpec, KernelOpSpec, TransferOpSpec
from graphc.spec.transfers import check_pair, check_pairs, wire_of
from graphc.text.diagnostics import Note, Span, error
from graphc.text.expr import evaluate_count, evaluate_number, evaluate_word, factor_of
from graphc.text.load import Site
from graphc.text.suggest import did_you_mean


class Binder:
    """Makes ops of drafts; the buffers that they name are made with them."""

    def __init__(self, buffers: Buffers, cuts: Mapping[str, Cut]) -> None:
        self.buffers, self.cuts = buffers, cuts

    def op_of(self, draft: Draft) -> Op:
        """The op as it would run whole; a ``SpecError`` if something is wrong with it."""
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
        return device_named(word, draft.context.scope, self.buffers.devices, at.span)

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
        cut = cut_named(str(use.blocks), self.cuts, at["blocks"].span)
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

    def transfer_op(self, draft: Draft, spec: TransferOpSpec, at: Site) -> Op:
        pairs: list[tuple[Buffer, Buffer]] = []
        for index in range(len(draft.uses) // 2):
            source = self.needed(draft.uses[f"source.{index}"], draft)
            target = self.needed(draft.uses[f"target.{index}"], draft)
            check_pair(source, target, draft.uses[f"target.{index}"].span)
            pairs.append((source, target))
        check_pairs(pairs, list(draft.uses.values()))
        wire = wire_of(spec.transfer.wire, draft.context.scope, pairs, at["wire"].span)
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

    def needed(self, use: Use, draft: Draft) -> Buffer:
        buffer = self.buffers.of(use, draft) if use.declared else None
        if buffer is None:
            name = f"'{use.declared.name}'" if use.declared else "null"
            raise error("missing-argument", f"{name} is left out, but it is needed here", use.span)
        return buffer

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


def whole(buffer: Buffer) -> Region:
    return Region(buffer.name, 0, buffer.nbytes)
