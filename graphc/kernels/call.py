"""What a call gives a kernel, and whether the contract allows it.

Symbols are bound by plain entries of shapes first; entries that are expressions are then computed
and compared. Every mistake is told at its argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from graphc.ir import MAPPED, Axis, Buffer, Role, Rows
from graphc.kernels.contract import INTEGERS, ArgumentSpec, Contract
from graphc.text.diagnostics import NOWHERE, Diagnostic, Note, Span
from graphc.text.expr import (
    Scaled,
    check_expression,
    evaluate_count,
    factor_of,
)
from graphc.text.load import kind
from graphc.text.suggest import did_you_mean

OVER_RANKS = -1  # the dimension of what a number of ranks fixes


@dataclass(frozen=True, slots=True)
class Argument:
    """What a call gives for one pointer argument: None stands for null."""

    buffer: Buffer | None
    rows: Rows | None = None  # what the call says of a gathered argument, ROW, or RING
    span: Span = NOWHERE
    passing: Axis | None = None  # of a ring: the rows that pass through it
    peers: tuple[Buffer, ...] = ()  # of an argument over all ranks: each one's, the first included

    @property
    def seen(self) -> Buffer | None:
        """The buffer as shapes see it: a ring as if it held all rows that pass through it."""
        if self.buffer is None or self.passing is None:
            return self.buffer
        shape = (self.passing.extent, *self.buffer.shape[1:])
        return replace(self.buffer, shape=shape, per_count=self.passing.per_count)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return self.peers or (() if self.buffer is None else (self.buffer,))


@dataclass(frozen=True, slots=True)
class Extent:
    """The value of a symbol, and the argument that fixed it."""

    value: int
    argument: str
    dim: int
    span: Span


@dataclass(slots=True)
class Checked:
    """A call while it is being checked; mistakes are collected."""

    contract: Contract
    args: Mapping[str, Argument]
    device: str | None
    span: Span
    spans: Mapping[str, Span]
    mistakes: list[Diagnostic] = field(default_factory=list)
    extents: dict[str, Extent] = field(default_factory=dict)

    def mistake(
        self, code: str, message: str, span: Span, *notes: Note, hint: str | None = None
    ) -> None:
        found = Diagnostic(code, message, span, notes, hint)
        if found not in self.mistakes:
            self.mistakes.append(found)

    def argument(self, name: str) -> str:
        return f"argument '{name}' of kernel '{self.contract.name}'"

    def given(self) -> Iterator[tuple[str, ArgumentSpec, Argument, Buffer]]:
        for name, spec in self.contract.args.items():
            argument = self.args.get(name)
            seen = argument.seen if argument is not None else None
            if argument is not None and seen is not None:
                yield name, spec, argument, seen

    @property
    def symbols(self) -> dict[str, int]:
        known = {name: each.value for name, each in self.extents.items()}
        return {name: known.get(name, 0) for name in self.contract.symbols}


def check_names(
    call: Checked, options: Mapping[str, int | str | bool], scalars: Mapping[str, int | float]
) -> None:
    contract = call.contract
    for name, argument in call.args.items():
        if name not in contract.args:
            known = (*contract.args, *contract.scalars)
            hint = did_you_mean(name, known) or f"its arguments are {', '.join(known)}"
            call.mistake(
                "unknown-argument",
                f"kernel '{contract.name}' has no argument '{name}'",
                argument.span,
                hint=hint,
            )
    for name, spec in contract.args.items():
        given = call.args.get(name)
        if (given is None or given.buffer is None) and not spec.optional:
            call.mistake(
                "missing-argument",
                f"kernel '{contract.name}' needs the argument '{name}'",
                given.span if given else call.span,
                hint=None
                if given
                else did_you_mean(name, [e for e in call.args if e not in contract.args]),
            )
    for name, value in options.items():
        check_option(call, name, value)
    for name in (*scalars, *contract.scalars):
        check_scalar(call, name, scalars)


def check_option(call: Checked, name: str, value: int | str | bool) -> None:
    contract, span = call.contract, call.spans.get(name, call.span)
    option = contract.options.get(name)
    if name in {each.ring for each in contract.args.values()}:
        text = f"option '{name}' of kernel '{contract.name}' is set by routes with a ring, not here"
        call.mistake("bad-option", text, span)
    elif option is None:
        known = ", ".join(contract.options) or "none"
        hint = did_you_mean(name, contract.options) or f"its options: {known}"
        call.mistake(
            "bad-option", f"kernel '{contract.name}' has no option '{name}'", span, hint=hint
        )
    elif option.choices and (
        value not in option.choices or type(value) is bool is not type(option.default)
    ):
        choices = ", ".join(str(each) for each in option.choices)
        call.mistake("bad-option", f"option '{name}' must be one of {choices}, not {value}", span)
    elif type(value) is not type(option.default):
        call.mistake(
            "bad-option",
            f"option '{name}' is {kind(option.default)} by default, not {kind(value)}",
            span,
        )
    elif contract.binary is not None and value != option.default:
        text = (
            f"kernel '{contract.name}' was compiled with '{name}' at its default: it cannot change"
        )
        call.mistake("bad-option", text, span)


def check_scalar(call: Checked, name: str, scalars: Mapping[str, int | float]) -> None:
    contract, span = call.contract, call.spans.get(name, call.span)
    if name not in contract.scalars:
        hint = did_you_mean(name, contract.scalars)
        call.mistake(
            "unknown-argument", f"kernel '{contract.name}' has no scalar '{name}'", span, hint=hint
        )
        return
    wanted = contract.scalars[name]
    if name not in scalars:
        text = f"kernel '{contract.name}' needs the scalar '{name}' ({wanted})"
        call.mistake("missing-argument", text, span, hint=row_hint(call, name))
        return
    value = scalars[name]
    if wanted in INTEGERS:
        lowest, highest = INTEGERS[wanted]
        if isinstance(value, bool) or not isinstance(value, int):
            text = f"scalar '{name}' is {wanted}: a whole number is needed, not {kind(value)}"
        elif not lowest <= value <= highest:
            text = f"scalar '{name}' is {wanted}: {value} does not fit"
        else:
            return
    elif isinstance(value, bool) or not isinstance(value, int | float):
        text = f"scalar '{name}' is {wanted}: a number is needed, not {kind(value)}"
    else:
        return
    call.mistake("bad-scalar", text, span)


def row_hint(call: Checked, scalar: str) -> str | None:
    """A scalar that names a row follows from the row that a call over all ranks names."""
    for name, spec, argument, buffer in call.given():
        if spec.rows.scalar == scalar and argument.peers:
            return f"write {name}: {{peers: {buffer.name.rpartition('/')[2]}, row: {scalar}}}"
    return None


def check_peers(call: Checked, name: str, spec: ArgumentSpec, argument: Argument) -> None:
    """An argument is over all ranks for the contract and for the call, or for neither."""
    first = argument.buffers[0]
    if argument.peers and spec.peers is None:
        text = f"{call.argument(name)} is one buffer, not those of all ranks"
        hint = f"write {name}: {first.name.rpartition('/')[2]}"
        call.mistake("bad-peers", text, argument.span, hint=hint)
    elif spec.peers is not None and not argument.peers:
        text = f"{call.argument(name)} is over the buffers of all ranks"
        hint = f"write {name}: {{peers: {first.name.rpartition('/')[2]}}}"
        call.mistake("bad-peers", text, argument.span, hint=hint)
    for each in argument.peers:
        if (each.dtype, each.shape, each.per_count) != (first.dtype, first.shape, first.per_count):
            text = (
                f"{call.argument(name)} is over buffers that are alike, but '{first.name}' is "
                f"{first.dtype} {list(first.shape)} and '{each.name}' is {each.dtype} "
                f"{list(each.shape)}"
            )
            notes = [Note(f"'{each.name}' is declared here", each.span)]
            call.mistake("wrong-shape", text, argument.span, *notes)
            return


def check_buffer(
    call: Checked, name: str, spec: ArgumentSpec, argument: Argument, buffer: Buffer
) -> None:
    declared = Note(f"'{buffer.name}' is declared here", buffer.span)
    notes = (declared,) if buffer.span != NOWHERE else ()
    if buffer.dtype not in spec.dtype:
        wanted = " or ".join(spec.dtype)
        text = f"{call.argument(name)} is {wanted}; '{buffer.name}' is {buffer.dtype}"
        call.mistake("wrong-dtype", text, argument.span, *notes)
    if spec.faults and buffer.role is not Role.STATUS:
        text = f"{call.argument(name)} tells of faults; '{buffer.name}' is {buffer.role.value}"
        call.mistake("bad-role", text, argument.span, *notes, hint="give it the role status")
    for each in argument.buffers:
        if place_of(each)[1] % spec.align:
            text = f"{call.argument(name)} needs an address that {spec.align} divides; "
            base, offset = place_of(each)
            text += f"'{each.name}' begins at byte {offset} of '{base}'"
            call.mistake("bad-overlay", text, argument.span, *notes)
            break
    for memory in dict.fromkeys(memory_of(each, call.device) for each in argument.buffers):
        if memory in spec.memory:
            continue
        where = {"mapped": "mapped host memory", "peer": f"on '{buffer.device}'"}.get(
            memory, "on its device"
        )
        text = (
            f"{call.argument(name)} must be in {' or '.join(spec.memory)} memory; "
            f"'{buffer.name}' is {where}"
        )
        call.mistake("wrong-memory", text, argument.span, *notes)


def memory_of(buffer: Buffer, device: str | None) -> str:
    """As a kernel on ``device`` sees it: its own memory, mapped host memory, or a peer's."""
    if buffer.device == MAPPED:
        return "mapped"
    return "device" if device in (None, buffer.device) else "peer"


def unify(call: Checked) -> None:
    """Fix the symbols from plain entries, then compare the entries that are expressions."""
    for name, spec, argument, buffer in call.given():
        if spec.peers is not None and argument.peers:
            ranks = len(argument.peers)
            fix(call, spec.peers, Extent(ranks, name, OVER_RANKS, argument.span))
        if not has_rank(spec, buffer):
            shape = ", ".join(str(each) for each in spec.shape)
            dims = list(buffer.shape)
            call.mistake(
                "wrong-shape",
                f"{call.argument(name)} is [{shape}]; '{buffer.name}' is {dims}",
                argument.span,
            )
            continue
        for index, dim in enumerate(spec.shape):
            symbol = str(dim).removeprefix("*")
            if symbol in call.contract.symbols:
                fix(call, symbol, Extent(extent(dim, index, buffer), name, index, argument.span))
    for name, spec, argument, buffer in call.given():
        if has_rank(spec, buffer):
            for index, dim in enumerate(spec.shape):
                if str(dim).removeprefix("*") not in call.contract.symbols:
                    compare(
                        call, dim, Extent(extent(dim, index, buffer), name, index, argument.span)
                    )


def has_rank(spec: ArgumentSpec, buffer: Buffer) -> bool:
    if spec.shape and str(spec.shape[-1]).startswith("*"):
        return len(buffer.shape) >= len(spec.shape) - 1
    return len(buffer.shape) == len(spec.shape)


def extent(dim: int | str, index: int, buffer: Buffer) -> int:
    """One extent of a buffer; that of its rows remembers how they follow the count."""
    if str(dim).startswith("*"):
        rest = prod(buffer.shape[index:])
        return (
            Scaled(rest, buffer.per_count * prod(buffer.shape[1:]))
            if index == 0 and buffer.per_count
            else rest
        )
    if index == 0 and buffer.per_count:
        return Scaled(buffer.shape[0], buffer.per_count)
    return buffer.shape[index]


def fix(call: Checked, symbol: str, found: Extent) -> None:
    first = call.extents.get(symbol)
    if first is None:
        call.extents[symbol] = found
        return
    if first.value != found.value:
        mismatch(call, symbol, found, first, str(found.value), str(first.value))
    elif first.dim == found.dim == 0 and factor_of(first.value) != factor_of(found.value):
        mismatch(call, symbol, found, first, follows(found.value), follows(first.value))
    elif factor_of(found.value) and not factor_of(first.value):
        call.extents[symbol] = found


def mismatch(
    call: Checked, symbol: str, found: Extent, first: Extent, value: str, expected: str
) -> None:
    where = f"dimension {found.dim} of '{buffer_name(call, found)}'"
    if found.dim == OVER_RANKS:
        where = "its number of ranks"
    call.mistake(
        "wrong-shape",
        f"'{symbol}' of kernel '{call.contract.name}' is {value} in argument "
        f"'{found.argument}' ({where}), but {expected} in '{first.argument}'",
        found.span,
        Note(f"'{symbol}' is {expected} here, in '{buffer_name(call, first)}'", first.span),
    )


def buffer_name(call: Checked, found: Extent) -> str:
    buffer = call.args[found.argument].buffer
    return buffer.name if buffer else "null"


def follows(value: int) -> str:
    factor = factor_of(value)
    return (
        f"{value} rows, {factor} for each unit of the count,"
        if factor
        else f"{value} rows at any count"
    )


def compare(call: Checked, dim: int | str, found: Extent) -> None:
    if isinstance(dim, int):
        wanted = dim
    else:
        symbols = call.symbols
        names = check_expression(dim).names
        if any(each not in call.extents for each in names):
            return  # one of its symbols has failed already, or stands in an absent argument
        wanted = evaluate_count(dim, symbols, found.span)
    what = f"'{dim}' of kernel '{call.contract.name}'"
    notes = tuple(
        Note(f"'{each}' is {call.extents[each].value} here", call.extents[each].span)
        for each in (check_expression(dim).names if isinstance(dim, str) else ())
    )
    where = (
        f"in argument '{found.argument}' (dimension {found.dim} of '{buffer_name(call, found)}')"
    )
    if wanted != found.value:
        text = f"{what} is {wanted}, but {found.value} {where}"
        call.mistake("wrong-shape", text, found.span, *notes)
    elif found.dim == 0 and factor_of(wanted) != factor_of(found.value):
        text = f"{what} is {follows(wanted)} but {follows(found.value)} {where}"
        call.mistake("wrong-shape", text, found.span, *notes)


def check_aliases(call: Checked) -> None:
    """Bytes that two arguments share would hide an access of the kernel to itself."""
    seen: dict[str, list[tuple[str, ArgumentSpec, Argument, Buffer]]] = {}  # by their memory
    for name, spec, argument, _ in call.given():
        for buffer in argument.buffers:
            before = seen.get(place_of(buffer)[0], [])
            clash = next((each for each in before if do_clash(each, name, spec, buffer)), None)
            if clash is None:
                continue
            first, _, given, other = clash
            what = f"'{other.name}' is both '{name}' and '{first}'"
            if other.name != buffer.name:
                what = f"'{buffer.name}' ('{name}') and '{other.name}' ('{first}') share bytes"
            call.mistake(
                "aliased-argument",
                f"{what}, and one of them is written",
                argument.span,
                Note("given here first", given.span),
            )
            break
        for buffer in argument.buffers:
            seen.setdefault(place_of(buffer)[0], []).append((name, spec, argument, buffer))


def do_clash(
    before: tuple[str, ArgumentSpec, Argument, Buffer],
    name: str,
    spec: ArgumentSpec,
    buffer: Buffer,
) -> bool:
    first, other, _, known = before
    is_read = spec.access == other.access == "read"
    return first != name and not is_read and share_bytes(known, buffer)


def place_of(buffer: Buffer) -> tuple[str, int]:
    """The memory in which a buffer lies, and from which byte on."""
    return buffer.overlay or (buffer.name, 0)


def share_bytes(one: Buffer, two: Buffer) -> bool:
    """Whether two buffers are the same, or lie over each other.

    >>> base, part = Buffer("x", "g", "u8", (8,)), Buffer("y", "g", "u8", (2,), overlay=("x", 6))
    >>> share_bytes(base, part), share_bytes(replace(base, shape=(6,)), part)
    (True, False)
    """
    (base, start), (other, begin) = place_of(one), place_of(two)
    if one.name == two.name:
        return True
    return base == other and max(start, begin) < min(start + one.nbytes, begin + two.nbytes)
