"""What a kernel promises: the contract in its template's leading comment.

A kernel that was compiled elsewhere, a cubin or PTX, has its contract in a file beside it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from graphc.dtypes import DTYPES
from graphc.text.diagnostics import NOWHERE, Diagnostic, Span, SpecError, error
from graphc.text.explain import Number, Scalar, Written, fault, validate
from graphc.text.expr import (
    RESERVED,
    check_expression,
)
from graphc.text.load import Document, Site, kind, load_comment, load_yaml
from graphc.text.suggest import did_you_mean

SUFFIX = ".cu.j2"
READY_SUFFIX = ".yaml"  # the contract of a kernel that was compiled elsewhere
BINARIES = (".cubin", ".ptx")
ELF, CUDA_MACHINE = b"\x7fELF", 190
INTEGERS = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1), "u32": (0, 2**32 - 1)}
LAUNCH_NAMES = ("lo", "hi", "blocks", "arch", "device")
CODE = re.compile(r"[1-9][0-9]{0,9}")
WORD = re.compile(r"\{([1-9][0-9]*)\}")  # of a status buffer, in what a code means
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
    align: Literal[1, 2, 4, 8, 16] = 1  # what divides its address
    peers: str | None = None  # the symbol that is the number of ranks: a pointer for each
    # What the first word of a status buffer says when it is not 0.
    faults: Annotated[dict[str, str], BeforeValidator(as_faults)] = Field(default={})

    @property
    def words(self) -> int:
        """How many words its faults need: the code, and those behind it that a text names."""
        named = (int(word) for text in self.faults.values() for word in WORD.findall(text))
        return 1 + max(named, default=0) if self.faults else 0


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
    peers: Number | None = None  # of the bytes, those in arguments over all ranks; None: any
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
    _calls: dict[Hashable, Any] = PrivateAttr(default_factory=dict)

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
    if contract.cost.peers is not None and all(
        each.peers is None for each in contract.args.values()
    ):
        text = "'peers' is of the bytes in arguments over all ranks, and there are none"
        yield bad(site["cost"]["peers"], text, at_key=True)
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
    names += [*contract.args, *contract.scalars, *cost.estimate]
    for what in ("flops", "bytes", "peers"):
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
