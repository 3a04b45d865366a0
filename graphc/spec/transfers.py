"""What a transfer may move: pairs of buffers alike, on two devices, apart; and its wire's dtype."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

from graphc.dtypes import DTYPES
from graphc.ir import MAPPED, Buffer
from graphc.kernels.call import share_bytes
from graphc.spec.expand import Use
from graphc.text.diagnostics import Note, Span, error
from graphc.text.expr import Scope, evaluate_word
from graphc.text.suggest import did_you_mean

CONVERTIBLE = frozenset({"f32", "f16", "bf16"})


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
    if not can_become(source.dtype, target.dtype):
        text = f"{source.dtype} of '{source.name}' cannot become {target.dtype}"
        raise error("wrong-dtype", text, span, notes=notes)


def check_pairs(pairs: Sequence[tuple[Buffer, Buffer]], uses: Sequence[Use]) -> None:
    """The pairs of one transfer go the same way, in no order: nothing lies where one arrives."""
    for (source, target), use in zip(pairs, uses[::2], strict=True):
        if (source.device, target.device) != (pairs[0][0].device, pairs[0][1].device):
            text = "the pairs of one transfer go from one device to one other"
            raise error("bad-transfer", text, use.span)
    ends = list(zip(uses, chain.from_iterable(pairs), strict=True))
    for (first, (one, before)), (second, (two, buffer)) in combinations(enumerate(ends), 2):
        if first % 2 == second % 2 == 0 or not share_bytes(before, buffer):
            continue
        text = f"'{buffer.name}' is the target of two pairs"
        if buffer.name != before.name:
            text = f"'{before.name}' and '{buffer.name}' share bytes, and one is a target"
        notes = [Note("given here first", one.span)]
        raise error("aliased-argument", text, two.span, notes=notes)


def wire_of(
    word: str | None, scope: Scope, pairs: Sequence[tuple[Buffer, Buffer]], span: Span
) -> str | None:
    """The dtype in which the pairs travel; None if they travel as they are."""
    name = evaluate_word(word, scope, span)
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
            if not can_become(end.dtype, name):
                text = f"'{end.name}' is {end.dtype}, which cannot travel as {name}"
                raise error("bad-wire", text, span, notes=[Note("declared here", end.span)])
    return str(name)


def can_become(dtype: str, other: str) -> bool:
    return dtype == other or {dtype, other} <= CONVERTIBLE
