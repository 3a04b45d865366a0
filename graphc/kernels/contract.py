"""What a kernel promises: the contract in its template's leading comment, and calls bound to it.

A kernel that was compiled elsewhere, a cubin or PTX, has its contract in a file beside it.

``bind`` checks a call's buffers against the contract: dtypes, memories and shapes. Symbols are
bound by plain entries of shapes first; entries that are expressions are then computed and compared.
The proof rests on what a contract says of its accesses, so everything else is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from graphc.dtypes import DTYPES
from graphc.ir import ALL, MAPPED, Access, Axis, Buffer, Kernel, Mode, Role, Rows, RowsKind
from graphc.regions import Region
from graphc.text.diagnostics import NOWHERE, Diagnostic, Note, Span, SpecError, error
from graphc.text.explain import Number, Scalar, Written, fault, validate
from graphc.text.expr import (
    RESERVED,
    Scaled,
    check_expression,
    evaluate_count,
    evaluate_number,
    factor_of,
)
from graphc.text.load import Document, Site, kind, load_comment, load_yaml
from graphc.text.suggest import did_you_mean

SUFFIX = ".cu.j2"
READY_SUFFIX = ".yaml"  # the contract of a kernel that was compiled elsewhere
BINARIES = (".cubin", ".ptx")
ELF, CUDA_MACHINE = b"\x7fELF", 190
INTEGERS = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1), "u32": (0, 2**32 - 1)}
MOST_ROWS = 2**31 - 1  # of an axis: kernels are told in 32 bits
MOST_CALLS = 1024  # calls that a contract remembers
MOST_PARAMETER_BYTES = 32_764  # of a launch, on GPUs from compute capability 7.0, by CUDA 12.1
PIECE_BYTES = 8 + 5 * 4  # what says which piece a launch is
OVER_RANKS = -1  # the dimension of what a number of ranks fixes
LAUNCH_NAMES = ("lo", "hi", "blocks", "arch", "device")
CODE = re.compile(r"[1-9][0-9]{0,9}")
FAULTS_HINT = 'write faults: {"1": "what went wrong"}'


def as_dtypes(value: object) -> object:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name not in DTYPES:
            hint = did_you_mean(str(name), DTYPES) or f"the dtypes are {', '.join(DTYPES)}"
            raise fault(f"expected a dtype, found {kind(name)}", hint=hint)
    if not names:
        raise fault("expected at least one dtype")
    return names


def as_rows(value: object) -> object:
    """``split`` alone is a split by one row for each row of the axis."""
    if value in ("all", "split", "piece", "gather"):
        return RowsSpec(kind=str(value))
    if isinstance(value, dict) and list(value) == ["split"]:
        return RowsSpec(kind="split", factor=value["split"])
    if isinstance(value, dict) and list(value) == ["row"] and isinstance(value["row"], str):
        return RowsSpec(kind="row", scalar=value["row"])
    hint = "blocks is for a call: {buffer: b, blocks: cut}" if "blocks" in str(value) else None
    raise fault("expected all, split, (split: factor), piece, gather or (row: scalar)", hint=hint)


def as_faults(value: object) -> object:
    """Codes are numbers, which YAML takes for keys only if they are quoted."""
    if not isinstance(value, dict) or not value:
        raise fault(f"expected what each code means, found {kind(value)}", hint=FAULTS_HINT)
    for code, message in value.items():
        if not CODE.fullmatch(str(code)) or int(code) >= 2**32:
            raise fault(f"'{code}' is no code: codes go from 1 on", hint=FAULTS_HINT)
        if not isinstance(message, str):
            raise fault(f"expected what code {code} means, found {kind(message)}")
    return value


def as_exact(value: object) -> object:
    if value is True:
        return {"row_independent": True}
    if isinstance(value, dict):
        return value
    raise fault(f"expected true, or a mapping with a tolerance, found {kind(value)}")


def as_dims(value: object) -> object:
    if not isinstance(value, list):
        raise fault(f"expected a list of extents, found {kind(value)}")
    for each in value:
        if isinstance(each, bool) or not isinstance(each, int | str):
            raise fault(f"expected a symbol, a number or an expression, found {kind(each)}")
    return value


class RowsSpec(Written):
    """Which rows of an argument a piece touches; ``factor`` of them for each row of the axis."""

    kind: str
    factor: Any = 1
    scalar: str | None = None  # of a single row: the scalar that says which


class ArgumentSpec(Written):
    """One pointer argument, or one pointer for each rank."""

    dtype: Annotated[list[str], BeforeValidator(as_dtypes)]
    shape: Annotated[list[Any], BeforeValidator(as_dims)]
    access: Literal["read", "write", "write_some", "update", "scatter", "accumulate"]
    rows: Annotated[RowsSpec, BeforeValidator(as_rows)] = RowsSpec(kind="all")
    ring: str | None = None  # the option that says: begins at the piece's first row
    memory: list[Literal["device", "mapped", "peer"]] = Field(
        ["device", "mapped", "peer"], min_length=1
    )
    optional: bool = False
    peers: str | None = None  # the symbol that is the number of ranks: a pointer for each
    # What the first word of a status buffer says when it is not 0.
    faults: Annotated[dict[str, str], BeforeValidator(as_faults)] = Field(default={})


class OptionSpec(Written):
    """A value fixed when the kernel is rendered."""

    default: Scalar
    choices: list[Scalar] = Field(default=[])


class LaunchSpec(Written):
    """The launch shape, as expressions."""

    grid: list[Number] = Field(min_length=1, max_length=3)
    block: list[Number] = Field(min_length=1, max_length=3)
    shared: Number = 0
    cluster: list[Number] = Field(default=[], max_length=3)
    cooperative: bool = False


class EdgeSpec(Written):
    """How the kernel itself can carry a signal or a wait."""

    signal: Literal["last_block"] | None = None
    wait: Literal["every_block"] | None = None


class ToleranceSpec(Written):
    rtol: Number
    atol: Number = 0.0


class ExactSpec(Written):
    """How near to the reference, and whether a row's bits are the same in any piece."""

    tolerance: ToleranceSpec | None = None
    row_independent: bool = False


class CostSpec(Written):
    """Work of one launch, as expressions; ``estimate`` gives sizes known on the device only."""

    flops: Number = 0
    bytes: Number = 0
    estimate: dict[str, Number] = Field(default={})


class Contract(Written):
    """The contract of one kernel: of a template, or of a ready binary."""

    graphc_kernel: Literal[1]
    name: str
    doc: str
    axis: str | None = None
    symbols: list[str] = Field(default=[])
    args: dict[str, ArgumentSpec]
    scalars: dict[str, Literal["i32", "i64", "u32", "f32", "f64"]] = Field(default={})
    options: dict[str, OptionSpec] = Field(default={})
    launch: LaunchSpec
    edge: EdgeSpec = EdgeSpec()
    min_capability: int = 70
    exact: Annotated[ExactSpec, BeforeValidator(as_exact)]
    guarded: bool = False  # does nothing once its unit has failed
    cost: CostSpec = CostSpec()
    reference: str | None = None
    binary: str | None = None  # a cubin or PTX, relative to the contract's file; no template then
    entry: str | None = None  # its function, if named otherwise than the kernel

    _document: Document | None = PrivateAttr(None)
    # Calls bound before, by all that the checks look at; only a cache (see bind).
    _calls: dict[Hashable, Call] = PrivateAttr(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file that holds it: the template, or the contract beside a binary."""
        return Path(self._document.file if self._document else self.name + SUFFIX)

    @property
    def site(self) -> Site | None:
        """Where it stands, for messages."""
        return self._document.root if self._document else None


def load_contract(path: str | Path) -> Contract:
    """Read the contract of a kernel; a ``SpecError`` of all that is wrong with it."""
    is_ready = Path(path).suffix == READY_SUFFIX
    document = load_yaml(path) if is_ready else load_comment(path)
    contract = validate(Contract, document)
    contract._document = document
    faults = list(contradictions(contract, document.root))
    if faults:
        raise SpecError(faults)
    if is_ready:
        read_binary(contract)
    return contract


def contradictions(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    """What each field alone allows but the contract as a whole does not."""
    expected = name_of(Path(site.document.file))
    if contract.name != expected:
        yield bad(site["name"], f"the contract is named '{contract.name}', its file '{expected}'")
    taken: dict[str, str] = {}
    for what in ("symbols", "args", "scalars", "options"):
        for index, name in enumerate(getattr(contract, what)):
            at = site[what][index if what == "symbols" else name]
            if not name.isidentifier() or name in RESERVED or name in LAUNCH_NAMES:
                yield bad(at, f"'{name}' cannot be a name here", at_key=True)
            elif name in taken and {what, taken[name]} & {"symbols", "options"}:
                yield bad(at, f"'{name}' is in {taken[name]} and in {what}", at_key=True)
            taken.setdefault(name, what)
    yield from wrong_binary(contract, site)
    yield from wrong_axis(contract, site)
    yield from wrong_rings(contract, site)
    yield from wrong_peers(contract, site)
    yield from wrong_faults(contract, site)
    yield from wrong_shapes(contract, site)
    yield from wrong_options(contract, site)
    yield from wrong_expressions(contract, site)
    if contract.reference is not None and not is_function(contract.reference):
        yield bad(site["reference"], f"expected module:function, found '{contract.reference}'")


def name_of(path: Path) -> str:
    """The kernel of a file.

    >>> name_of(Path("convert.cu.j2")), name_of(Path("fast.yaml"))
    ('convert', 'fast')
    """
    return path.name.removesuffix(SUFFIX).removesuffix(READY_SUFFIX)


def is_function(name: str) -> bool:
    module, colon, function = name.partition(":")
    return (
        bool(colon) and function.isidentifier() and all(p.isidentifier() for p in module.split("."))
    )


def bad(site: Site, message: str, *, at_key: bool = False, hint: str | None = None) -> Diagnostic:
    return Diagnostic("bad-contract", message, site.key if at_key else site.span, hint=hint)


def wrong_binary(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    """A binary stands beside its contract; it was made for one dtype of each argument."""
    if Path(site.document.file).suffix != READY_SUFFIX:
        for name in ("binary", "entry"):
            if getattr(contract, name) is not None:
                text = f"'{name}' is for the contract of a ready binary, a file of its own"
                yield bad(site[name], text, at_key=True)
        return
    if contract.binary is None:
        yield bad(site, "this contract needs a 'binary': there is no template to compile")
    elif Path(contract.binary).suffix not in BINARIES:
        text = f"expected a file {' or '.join(BINARIES)}, found '{contract.binary}'"
        yield bad(site["binary"], text)
    for name, each in contract.args.items():
        if len(each.dtype) > 1:
            at = site["args"][name]["dtype"]
            yield bad(at, f"a binary was compiled for one dtype, '{name}' has {len(each.dtype)}")


def read_binary(contract: Contract) -> bytes:
    """The ready cubin or PTX of a contract; a ``SpecError`` if it is missing or something else."""
    assert contract.binary is not None
    path = contract.path.parent / contract.binary
    span = contract.site["binary"].span if contract.site else NOWHERE
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise error("bad-contract", f"cannot read '{path}': {problem.strerror}", span) from None
    is_ptx = path.suffix == ".ptx"
    if not (b".version" in data if is_ptx else is_cubin(data)):
        raise error("bad-contract", f"'{path}' is no {'PTX' if is_ptx else 'cubin'}", span)
    pattern = rb"\.entry\s+([A-Za-z_$][\w$]*)" if is_ptx else rb"\.text\.([A-Za-z_$][\w$]*)\0"
    entries = dict.fromkeys(each.decode() for each in re.findall(pattern, data))
    entry = contract.entry or contract.name
    if entry not in entries:
        hint = did_you_mean(entry, entries) or f"its kernels are {', '.join(entries) or 'none'}"
        raise error("bad-contract", f"'{path}' has no kernel '{entry}'", span, hint=hint)
    # The driver reads PTX as text that ends with a zero.
    return data.rstrip(b"\0") + b"\0" if is_ptx else data


def is_cubin(data: bytes) -> bool:
    """Whether these are the bytes of an ELF file for CUDA devices."""
    return data[:4] == ELF and int.from_bytes(data[18:20], "little") == CUDA_MACHINE


def wrong_axis(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    if contract.axis is not None and contract.axis not in contract.symbols:
        hint = did_you_mean(contract.axis, contract.symbols)
        yield bad(site["axis"], f"the axis '{contract.axis}' is no symbol", hint=hint)
    for name, each in contract.args.items():
        if each.rows.kind in ("split", "piece") and contract.axis is None:
            yield bad(
                site["args"][name]["rows"], f"rows of '{name}' follow an axis, but none is given"
            )


def wrong_rings(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    """A ring holds the rows of whole pieces, and an option tells the kernel of it."""
    for name, each in contract.args.items():
        at = site["args"][name]["ring"]
        if each.ring is None:
            continue
        option = contract.options.get(each.ring)
        if option is None or option.default is not False:
            text = f"'ring' names an option that is false by default: '{each.ring}' is none"
            yield bad(at, text, hint=did_you_mean(each.ring, contract.options))
        is_plain = bool(each.shape) and not str(each.shape[0]).startswith("*")
        if each.rows.kind != "split" or each.rows.factor != 1 or not is_plain:
            yield bad(at, f"'{name}' can be in a ring only if its first extent is split")


def wrong_peers(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    """Peers are counted by a symbol; a single row is named by a scalar, which the kernel sees."""
    for name, each in contract.args.items():
        at = site["args"][name]
        if each.peers is not None and each.peers not in contract.symbols:
            hint = did_you_mean(each.peers, contract.symbols)
            yield bad(at["peers"], f"'peers' names a symbol: '{each.peers}' is none", hint=hint)
        if each.peers is not None and each.peers == contract.axis:
            yield bad(at["peers"], f"the axis '{each.peers}' cannot be the number of ranks")
        if each.peers is not None and each.ring is not None:
            yield bad(at["ring"], f"'{name}' is over all ranks: it cannot be in a ring")
        scalar = each.rows.scalar
        if scalar is not None and contract.scalars.get(scalar) not in INTEGERS:
            what = contract.scalars.get(scalar, "none")
            hint = None if scalar in contract.scalars else did_you_mean(scalar, contract.scalars)
            text = f"the row of '{name}' is a scalar of whole numbers: '{scalar}' is {what}"
            yield bad(at["rows"], text, hint=hint)


def wrong_faults(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    for name, each in contract.args.items():
        at = site["args"][name]["faults"]
        ways = ("write_some", "update", "accumulate")
        if each.faults and (each.dtype != ["u32"] or each.access not in ways):
            text = f"'{name}' tells of faults: it is u32, and its access one of {', '.join(ways)}"
            yield bad(at, text, at_key=True)


def wrong_shapes(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    bound: set[str] = {each.peers for each in contract.args.values() if each.peers is not None}
    for name, each in contract.args.items():
        for index, dim in enumerate(each.shape):
            at = site["args"][name]["shape"][index]
            symbol = str(dim).removeprefix("*")
            if str(dim).startswith("*") and index != len(each.shape) - 1:
                yield bad(at, f"'{dim}' stands for all remaining extents: it must be the last")
            if symbol in contract.symbols:
                bound.add(symbol)
            elif isinstance(dim, str):
                yield from wrong_expression(dim, contract.symbols, at)
    for index, symbol in enumerate(contract.symbols):
        if symbol not in bound:
            yield bad(site["symbols"][index], f"no shape has '{symbol}' alone, so nothing fixes it")


def wrong_options(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    for name, option in contract.options.items():
        if option.choices and option.default not in option.choices:
            at = site["options"][name]["default"]
            yield bad(at, f"the default {option.default} is none of {option.choices}")


def wrong_expressions(contract: Contract, site: Site) -> Iterator[Diagnostic]:
    launch, cost = contract.launch, contract.cost
    names = [*contract.symbols, *contract.options, *LAUNCH_NAMES]
    for what in ("grid", "block", "cluster"):
        for index, each in enumerate(getattr(launch, what)):
            yield from wrong_expression(each, names, site["launch"][what][index])
    yield from wrong_expression(launch.shared, names, site["launch"]["shared"])
    names += [*contract.args, *cost.estimate]
    for what in ("flops", "bytes"):
        yield from wrong_expression(getattr(cost, what), names, site["cost"][what])
    for name, each in cost.estimate.items():
        yield from wrong_expression(each, names, site["cost"]["estimate"][name])


def wrong_expression(text: object, names: Iterable[str], site: Site) -> Iterator[Diagnostic]:
    if not isinstance(text, str):
        return
    try:
        used = check_expression(text, site.span).names
    except SpecError as problem:
        yield from problem.diagnostics
        return
    known = list(names)
    for name in used:
        if name.partition(".")[0] not in known:
            yield bad(site, f"unknown name '{name}' in '{text}'", hint=did_you_mean(name, known))


class Catalog:
    """The kernels of some folders, searched in order; a contract is read when it is asked for."""

    def __init__(self, folders: Iterable[str | Path]) -> None:
        self.folders = tuple(Path(each) for each in folders)

    def contract(self, name: str, span: Span = NOWHERE) -> Contract:
        """The contract of that name; a ``SpecError`` at ``span`` if no folder has it."""
        for folder in self.folders:
            for suffix in (SUFFIX, READY_SUFFIX):
                path = folder / f"{name}{suffix}"
                try:
                    state = path.stat()
                except OSError:
                    continue
                return kept_contract(str(path), state.st_mtime_ns, state.st_size)
        hint = did_you_mean(name, self.names()) or f"the kernels are {', '.join(self.names())}"
        raise error("unknown-kernel", f"there is no kernel '{name}'", span, hint=hint)

    def names(self) -> tuple[str, ...]:
        found = {
            name_of(each)
            for folder in self.folders
            for suffix in (SUFFIX, READY_SUFFIX)
            for each in folder.glob(f"*{suffix}")
            if suffix == SUFFIX or is_contract(each)
        }
        return tuple(sorted(found))


def is_contract(path: Path) -> bool:
    """Whether a YAML file is the contract of a kernel: other files may lie among them."""
    with suppress(OSError):
        return b"graphc_kernel:" in path.read_bytes()
    return False


@lru_cache(maxsize=256)
def kept_contract(path: str, mtime_ns: int, nbytes: int) -> Contract:
    """Contracts read before, by the state of their files: a second compile reads none."""
    return load_contract(path)


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
class Bound:
    """A call that keeps to its contract. Symbols that follow the count are ``Scaled``."""

    kernel: Kernel
    accesses: tuple[Access, ...]
    axis: Axis


@dataclass(frozen=True, slots=True)
class Extent:
    """The value of a symbol, and the argument that fixed it."""

    value: int
    argument: str
    dim: int
    span: Span


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


def rings(call: Checked) -> Iterator[str]:
    """The options that follow from the arguments that are rings."""
    for name, spec, argument, _ in call.given():
        if argument.passing is None:
            continue
        if spec.ring is not None and call.contract.binary is None:
            yield spec.ring
            continue
        call.mistake("bad-rows", f"{call.argument(name)} cannot be in a ring", argument.span)


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
        call.mistake("missing-argument", text, span)
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
