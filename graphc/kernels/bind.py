"""A call and a contract -> what the call touches.

The proof rests on what a contract says of its accesses, so everything that it does not allow is
refused here. Calls that are alike are checked once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from graphc.ir import ALL, Access, Axis, Buffer, Kernel, Mode, Role, Rows, RowsKind
from graphc.kernels.call import (
    Argument,
    Checked,
    check_aliases,
    check_buffer,
    check_names,
    check_peers,
    memory_of,
    place_of,
    unify,
)
from graphc.kernels.contract import ArgumentSpec, Contract
from graphc.regions import Region
from graphc.text.diagnostics import Note, Span, SpecError, error
from graphc.text.expr import (
    evaluate_number,
    factor_of,
)

MOST_ROWS = 2**31 - 1  # of an axis: kernels are told in 32 bits
MOST_CALLS = 1024  # calls that a contract remembers
MOST_PARAMETER_BYTES = 32_764  # of a launch, on GPUs from compute capability 7.0, by CUDA 12.1
PIECE_BYTES = 8 + 5 * 4  # what says which piece a launch is


@dataclass(frozen=True, slots=True)
class Bound:
    """A call that keeps to its contract. Symbols that follow the count are ``Scaled``."""

    kernel: Kernel
    accesses: tuple[Access, ...]
    axis: Axis


@dataclass(frozen=True, slots=True)
class Call:
    """What is alike in all calls that give arguments of the same kind."""

    kernel: Kernel
    axis: Axis
    accesses: tuple[tuple[str, Mode, Rows], ...]

    def bound(self, args: Mapping[str, Argument]) -> Bound:
        return Bound(self.kernel, tuple(self.touched(args)), self.axis)

    def touched(self, args: Mapping[str, Argument]) -> Iterator[Access]:
        for name, mode, rows in self.accesses:
            argument = args[name]
            for peer, buffer in enumerate(argument.buffers):
                region = Region(buffer.name, 0, buffer.nbytes)
                if rows.kind is RowsKind.ROW:
                    start = rows.factor * buffer.row_nbytes
                    region = Region(buffer.name, start, start + buffer.row_nbytes)
                is_one = not argument.peers
                yield Access(name, region, mode, rows, argument.span, None if is_one else peer)


def bind(
    contract: Contract,
    args: Mapping[str, Argument],
    *,
    options: Mapping[str, int | str | bool],
    scalars: Mapping[str, int | float],
    span: Span,
    device: str | None = None,
    spans: Mapping[str, Span] | None = None,
) -> Bound:
    """Check a call on ``device`` against the contract and say what it touches.

    A ``SpecError`` names every mistake, each at its argument. ``spans`` are the places of options
    and scalars by name. Calls that are alike, as in each iteration of a repeat, are checked once.
    """
    scalars = {**scalars, **dict(named_rows(contract, args, scalars))}
    calls, key = contract._calls, likeness(args, options, scalars, device)
    known = calls.get(key)
    if known is None:
        known = checked_call(Checked(contract, args, device, span, spans or {}), options, scalars)
        if len(calls) >= MOST_CALLS:
            calls.clear()
        calls[key] = known
    return known.bound(args)


def named_rows(
    contract: Contract, args: Mapping[str, Argument], scalars: Mapping[str, int | float]
) -> Iterator[tuple[str, int]]:
    """The scalars that follow from the rows that a call names."""
    for name, spec in contract.args.items():
        rows = args[name].rows if name in args else None
        if rows is None or rows.kind is not RowsKind.ROW or spec.rows.scalar in (None, *scalars):
            continue
        yield str(spec.rows.scalar), rows.factor


def likeness(
    args: Mapping[str, Argument],
    options: Mapping[str, int | str | bool],
    scalars: Mapping[str, int | float],
    device: str | None,
) -> Hashable:
    """All that the checks of a call look at, but for places and names."""
    given = [buffer for each in args.values() for buffer in each.buffers]
    arguments = tuple(
        (
            name,
            each.rows,
            each.passing,
            len(each.peers),
            frozenset(
                (
                    buffer.dtype,
                    buffer.shape,
                    buffer.per_count,
                    buffer.role is Role.STATUS,
                    memory_of(buffer, device),
                )
                for buffer in each.buffers
            ),
        )
        for name, each in args.items()
    )
    values = [
        (name, type(each), str(each)) for kept in (options, scalars) for name, each in kept.items()
    ]
    return arguments, len(options), tuple(values), meetings(given)


def meetings(given: Sequence[Buffer]) -> Hashable:
    """Which of the buffers are one, or lie in the same memory, and from which byte on."""
    names = [each.name for each in given]
    if len({*names}) == len(names) and all(each.overlay is None for each in given):
        return ()
    places = [place_of(each) for each in given]
    bases = [base for base, _ in places]
    return tuple(
        (names.index(name), bases.index(base), offset)
        for name, (base, offset) in zip(names, places, strict=True)
    )


def checked_call(
    call: Checked,
    options: Mapping[str, int | str | bool],
    scalars: Mapping[str, int | float],
) -> Call:
    contract = call.contract
    for name, spec, argument, _ in call.given():
        check_peers(call, name, spec, argument)
    if call.mistakes:
        raise SpecError(call.mistakes)
    check_names(call, options, scalars)
    for name, spec, argument, buffer in call.given():
        check_buffer(call, name, spec, argument, buffer)
        check_words(call, name, spec, argument, buffer)
    unify(call)
    check_aliases(call)
    chosen = {
        **{name: each.default for name, each in contract.options.items()},
        **options,
        **dict.fromkeys(rings(call), True),
    }
    # What follows stands on the extents, so it waits until they are right.
    if call.mistakes:
        raise SpecError(call.mistakes)
    axis = axis_of(call)
    accesses = tuple(
        (name, Mode(spec.access), rows_of(call, axis, name, spec, argument, buffer, scalars))
        for name, spec, argument, buffer in call.given()
    )
    if call.mistakes:
        raise SpecError(call.mistakes)
    kernel = Kernel(contract.name, call.symbols, chosen, dict(scalars))
    nbytes = parameter_nbytes(contract, call.symbols)
    if nbytes > MOST_PARAMETER_BYTES:
        text = (
            f"kernel '{contract.name}' would take {nbytes:,} bytes of parameters: a launch carries "
            f"at most {MOST_PARAMETER_BYTES:,}"
        )
        raise error("bad-kernel", text, call.span, hint="give it fewer arguments over all ranks")
    return Call(kernel, axis, accesses)


def check_words(
    call: Checked, name: str, spec: ArgumentSpec, argument: Argument, buffer: Buffer
) -> None:
    """A kernel writes a code and the words that its faults name: they need room."""
    if prod(buffer.shape) < spec.words:
        text = f"{call.argument(name)} needs the shape [{spec.words}] or more for its faults; "
        text += f"'{buffer.name}' is {list(buffer.shape)}"
        declared = Note(f"'{buffer.name}' is declared here", buffer.span)
        hint = "it holds the code, and behind it the words that the faults name"
        call.mistake("wrong-shape", text, argument.span, declared, hint=hint)


def rings(call: Checked) -> Iterator[str]:
    """The options that follow from the arguments that are rings."""
    for name, spec, argument, _ in call.given():
        if argument.passing is None:
            continue
        if spec.ring is not None and call.contract.binary is None:
            yield spec.ring
            continue
        call.mistake("bad-rows", f"{call.argument(name)} cannot be in a ring", argument.span)


def axis_of(call: Checked) -> Axis:
    name = call.contract.axis
    if name is None:
        return Axis()
    value = call.symbols[name]
    axis = Axis(int(value), factor_of(value))
    # What a launch is given of its axis: the rows, or the count and the rows for each unit of it.
    parts = (axis.extent // axis.per_count, axis.per_count) if axis.per_count else (axis.extent,)
    if max(parts) > MOST_ROWS:
        what = "a count of " if axis.per_count else ""
        text = (
            f"'{name}' of kernel '{call.contract.name}' is {what}{max(parts)} in argument "
            f"'{call.extents[name].argument}': its axis goes up to {MOST_ROWS}"
        )
        call.mistake("wrong-shape", text, call.extents[name].span)
    return axis


def rows_of(
    call: Checked,
    axis: Axis,
    name: str,
    spec: ArgumentSpec,
    argument: Argument,
    buffer: Buffer,
    scalars: Mapping[str, int | float],
) -> Rows:
    if spec.rows.scalar is not None:
        return row_of(call, name, spec.rows.scalar, argument, buffer, scalars)
    if argument.rows is not None and argument.passing is None:
        if spec.rows.kind != "gather":
            text = (
                f"the rows of '{name}' are fixed by kernel '{call.contract.name}': {spec.rows.kind}"
            )
            call.mistake("bad-rows", text, argument.span, hint="blocks is for gathered arguments")
        return argument.rows
    if spec.rows.kind != "split":
        return Rows(RowsKind(spec.rows.kind)) if spec.rows.kind != "all" else ALL
    factor = int(evaluate_number(spec.rows.factor, call.symbols, argument.span))
    if buffer.rows != factor * axis.extent or buffer.per_count != factor * axis.per_count:
        text = (
            f"'{buffer.name}' has {buffer.rows} rows, but kernel '{call.contract.name}' splits "
            f"'{name}' with {factor} for each of {axis.extent} rows of '{call.contract.axis}'"
        )
        call.mistake("bad-rows", text, argument.span)
    return argument.rows or Rows(RowsKind.SPLIT, factor)


def row_of(
    call: Checked,
    name: str,
    scalar: str,
    argument: Argument,
    buffer: Buffer,
    scalars: Mapping[str, int | float],
) -> Rows:
    """The single row that a scalar names, which the kernel sees as well."""
    row = int(scalars[scalar])
    text = None
    if argument.rows is not None and argument.rows.kind is not RowsKind.ROW:
        text = f"{call.argument(name)} is a single row, that of its scalar '{scalar}'"
    elif argument.rows is not None and argument.rows.factor != row:
        text = f"{call.argument(name)} is row {row}, for scalar '{scalar}' is {row}, not "
        text += f"{argument.rows.factor}"
    elif buffer.per_count:
        text = f"{call.argument(name)} is a single row, but those of '{buffer.name}' are counted"
    elif not 0 <= row < buffer.rows:
        text = f"{call.argument(name)} is row {row}, but '{buffer.name}' has {buffer.rows} rows"
    if text is not None:
        call.mistake("bad-rows", text, argument.span)
        return ALL
    return Rows(RowsKind.ROW, row)


def parameter_nbytes(contract: Contract, symbols: Mapping[str, int]) -> int:
    """The bytes that a launch carries, at most: pointers, scalars, the piece and the guard."""
    pointers = sum(
        1 if each.peers is None else max(1, symbols[each.peers]) for each in contract.args.values()
    )
    return 8 * (pointers + len(contract.scalars)) + PIECE_BYTES + 8 * contract.guarded


def built_in(contract: Contract, kernel: Kernel) -> dict[str, int]:
    """The symbols that a template sees: those that do not vary from launch to launch."""
    return {
        name: int(value)
        for name, value in kernel.symbols.items()
        if name != contract.axis and not factor_of(value)
    }
