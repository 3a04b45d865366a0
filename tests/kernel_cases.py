"""Cases for every shipped kernel, and the harness that holds a kernel to its contract.

A case is data: symbols, dtypes, a cut, a count and how the inputs are made. Whoever can run one
piece of a kernel is a ``Runner``: the references here, a device elsewhere. Arguments lie between
guard zones in arrays of their own; what a piece may not touch is poison. Each piece runs twice over
different poison, so that a read of it, or a byte left unwritten, makes the two differ. An argument
over all ranks is as many arrays: ``y[0]``, ``y[1]``, ...
"""

from __future__ import annotations

import importlib
import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphc.dtypes import dtype
from graphc.ir import Axis, Kernel, Piece
from graphc.kernels.contract import ArgumentSpec, Catalog, Contract
from graphc.reference.expert_parallel import stamp_of
from graphc.resources import kernel_folders
from graphc.text.expr import Scaled, evaluate_number

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
Bounds: TypeAlias = list[tuple[int, int]]
GUARD = 512  # bytes on either side of an argument

WHOLE = (Fraction(0), Fraction(1))
THREE = (Fraction(0), Fraction(1, 3), Fraction(2, 3), Fraction(1))
UNEQUAL = (Fraction(0), Fraction(1, 16), Fraction(1, 16), Fraction(3, 4), Fraction(1))
MANY = tuple(Fraction(i, 16) for i in range(17))


@dataclass(frozen=True)
class Case:
    """One kernel at one size: enough to render it, to make its arrays and to run its pieces."""

    kernel: str
    symbols: Mapping[str, int]  # extents at capacity
    dtypes: Mapping[str, str] = field(default_factory=dict)  # else the contract's first
    absent: tuple[str, ...] = ()
    scalars: Mapping[str, int | float] = field(default_factory=dict)
    options: Mapping[str, int | str | bool] = field(default_factory=dict)
    cut: tuple[Fraction, ...] = WHOLE
    count: int | None = None  # rows in use; None: all, and they do not vary
    inputs: str = ""  # one of INPUTS; else random numbers
    offset: int = 0  # elements by which every argument is moved off its alignment

    def __str__(self) -> str:
        sizes = ",".join(f"{name}={value}" for name, value in self.symbols.items())
        dtypes = ",".join(self.dtypes.values())
        cut = f"/{len(self.cut) - 1} pieces" if len(self.cut) > 2 else ""
        count = "" if self.count is None else f"/count {self.count}"
        odd = f"/offset {self.offset}" if self.offset else ""
        options = ",".join(map(str, self.options.values()))
        absent = "without " + ",".join(self.absent)
        parts = (self.kernel, sizes, dtypes, options, self.inputs, absent)
        shown = [each for each in parts if each and each != "without "]
        return "/".join(shown) + cut + count + odd

    @property
    def contract(self) -> Contract:
        return catalog().contract(self.kernel)

    @property
    def given(self) -> Mapping[str, ArgumentSpec]:
        return {k: v for k, v in self.contract.args.items() if k not in self.absent}

    @property
    def arrays(self) -> Mapping[str, ArgumentSpec]:
        """What lies in an array of its own: each given argument, or one for each rank."""
        return {
            place: spec
            for name, spec in self.given.items()
            for place in ([name] if spec.peers is None else self.of_ranks(name))
        }

    def of_ranks(self, name: str) -> list[str]:
        ranks = self.symbols[str(self.contract.args[name].peers)]
        return [f"{name}[{rank}]" for rank in range(ranks)]

    def dtype_of(self, place: str) -> str:
        argument = argument_of(place)
        return self.dtypes.get(argument) or self.contract.args[argument].dtype[0]

    def shape_of(self, place: str) -> tuple[int, ...]:
        dims = self.contract.args[argument_of(place)].shape
        return tuple(int(evaluate_number(str(dim).removeprefix("*"), self.symbols)) for dim in dims)

    @property
    def axis(self) -> Axis:
        extent = self.symbols[self.contract.axis] if self.contract.axis else 1
        return Axis(extent, 0 if self.count is None else 1)

    @property
    def call(self) -> Kernel:
        """What ``bind`` would make of the call."""
        symbols = dict(self.symbols)
        if self.count is not None and self.contract.axis:
            symbols[self.contract.axis] = Scaled(self.axis.extent)
        options = {name: each.default for name, each in self.contract.options.items()}
        return Kernel(self.kernel, symbols, {**options, **self.options}, dict(self.scalars))

    @property
    def pieces(self) -> list[Piece]:
        of = len(self.cut) - 1
        return [Piece(i, of, start, stop) for i, (start, stop) in enumerate(pairwise(self.cut))]

    @property
    def bounds(self) -> Bounds:
        return [piece.bounds(self.axis, self.count) for piece in self.pieces]


@dataclass(frozen=True)
class Call:
    """One piece of a case, to be run."""

    case: Case
    piece: int
    lo: int
    hi: int

    def values(self) -> dict[str, Any]:
        case = self.case
        return {
            **case.symbols,
            **case.call.options,
            **case.scalars,
            "lo": self.lo,
            "hi": self.hi,
            "piece": self.piece,
            "count": case.count,
        }


@dataclass
class Guarded:
    """One argument between guard zones: ``raw`` is all of it, the data begins at byte ``start``."""

    raw: NDArray[np.uint8]
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_read_only: bool

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def data(self) -> Array:
        inner = self.raw[self.start : self.start + self.nbytes]
        return inner.view(self.dtype).reshape(self.shape)


Lent: TypeAlias = Guarded | tuple[Guarded, ...] | None
Runner: TypeAlias = Callable[[Call, Mapping[str, Lent]], None]


def argument_of(place: str) -> str:
    return place.partition("[")[0]


def by_argument(case: Case, arrays: Mapping[str, Guarded]) -> dict[str, Lent]:
    """What is given for each argument of the contract."""
    found: dict[str, Lent] = {}
    for name, spec in case.contract.args.items():
        if spec.peers is None or name not in case.given:
            found[name] = arrays.get(name)
        else:
            found[name] = tuple(arrays[place] for place in case.of_ranks(name))
    return found


@cache
def catalog() -> Catalog:
    return Catalog(kernel_folders())


def run_reference(call: Call, arguments: Mapping[str, Lent]) -> None:
    """Run the contract's reference over the guarded arrays."""
    name = call.case.contract.reference
    assert name is not None, f"kernel '{call.case.kernel}' names no reference"
    module, _, function = name.partition(":")
    run_function(getattr(importlib.import_module(module), function), call, arguments)


def run_function(function: Callable[..., None], call: Call, arguments: Mapping[str, Lent]) -> None:
    given: dict[str, Array | tuple[Array, ...] | None] = {}
    for name, each in arguments.items():
        if isinstance(each, tuple):
            given[name] = tuple(map(view_of, each))
        else:
            given[name] = None if each is None else view_of(each)
    values = {**call.values(), **given}
    function(**{name: values[name] for name in inspect.signature(function).parameters})


def view_of(each: Guarded) -> Array:
    view = each.data
    if each.is_read_only:
        view.flags.writeable = False
    return view


def hold_to_contract(case: Case, run: Runner) -> Arrays:
    """Run all pieces, each twice over different poison; fail on any access that is not declared.

    Returns the outputs as a program would leave them, bytes that nobody wrote being zero.
    """
    inputs = make_inputs(case)
    outputs = {
        name: np.zeros(case.shape_of(name), dtype(case.dtype_of(name)).numpy)
        if each.access != "update"
        else inputs[name].copy()
        for name, each in case.arrays.items()
        if each.access != "read"
    }
    for index, (lo, hi) in enumerate(case.bounds):
        call = Call(case, index, lo, hi)
        first, second = (poisoned(case, call, inputs, seed) for seed in (1, 2))
        befores = [{k: v.raw.copy() for k, v in each.items()} for each in (first, second)]
        for arguments in (first, second):
            run(call, by_argument(case, arguments))
        for name, spec in case.arrays.items():
            rows = declared(case, call, name)
            check_outside(call, name, spec, first[name], befores[0][name], rows)
            check_outside(call, name, spec, second[name], befores[1][name], rows)
            if spec.access != "read":
                mine = [first[name], second[name]]
                start = [each[name] for each in befores]
                take(call, name, spec, mine, start, rows, outputs[name])
    return outputs


def declared(case: Case, call: Call, name: str) -> slice:
    """The rows of an argument that the contract lets this piece touch."""
    rows = case.contract.args[argument_of(name)].rows
    if rows.scalar is not None:
        row = int(case.scalars[rows.scalar])
        return slice(row, row + 1)
    if rows.kind == "split":
        factor = int(evaluate_number(rows.factor, case.symbols))
        return slice(factor * call.lo, factor * call.hi)
    if rows.kind == "piece":
        return slice(call.piece, call.piece + 1)
    if rows.kind == "gather" and case.inputs in BLOCKS:
        return slice(call.lo, call.hi)
    return slice(0, None)


def poisoned(case: Case, call: Call, inputs: Arrays, seed: int) -> dict[str, Guarded]:
    """The arguments of one piece: inputs where they may be read, poison everywhere else."""
    found: dict[str, Guarded] = {}
    for name, spec in case.arrays.items():
        kind = dtype(case.dtype_of(name)).numpy
        shape = case.shape_of(name)
        nbytes = prod(shape) * kind.itemsize
        generator = np.random.default_rng([seed, zlib.crc32(name.encode()), call.piece])
        # 16 spare bytes, so that the data can begin at any alignment.
        raw = generator.integers(0, 256, 2 * GUARD + nbytes + 32, np.uint8)
        start = GUARD - (raw.ctypes.data + GUARD) % 16 + 16 + case.offset * kind.itemsize
        each = Guarded(raw, start, shape, kind, spec.access == "read")
        if spec.access in ("read", "update"):
            rows = declared(case, call, name)
            each.data[rows] = inputs[name][rows]
        found[name] = each
    return found


def check_outside(
    call: Call,
    name: str,
    spec: ArgumentSpec,
    after: Guarded,
    before: NDArray[np.uint8],
    rows: slice,
) -> None:
    """Nothing but declared rows of written arguments may have changed."""
    changed = after.raw != before
    if spec.access != "read":
        inside = Guarded(changed.view(np.uint8), after.start, after.shape, after.dtype, False)
        inside.data[rows].view(np.uint8)[...] = 0
    if changed.any():
        at = int(np.flatnonzero(changed)[0]) - after.start
        what = "it may only read" if spec.access == "read" else f"outside rows {rows}"
        raise AssertionError(
            f"{call.case}: piece {call.piece} [{call.lo}, {call.hi}) wrote byte {at} of '{name}', "
            f"which is {what}"
        )


def take(
    call: Call,
    name: str,
    spec: ArgumentSpec,
    after: list[Guarded],
    before: list[NDArray[np.uint8]],
    rows: slice,
    output: Array,
) -> None:
    """Both runs must have left the same bytes; some accesses may have left them alone."""
    is_partial = spec.access in ("write_some", "scatter")
    one, two = (as_bytes(each.data[rows]) for each in after)
    differ = one != two
    if is_partial:
        untouched = [
            as_bytes(replace(each, raw=raw).data[rows]) == as_bytes(each.data[rows])
            for each, raw in zip(after, before, strict=True)
        ]
        differ &= ~(untouched[0] & untouched[1])
    if differ.any():
        at = int(np.flatnonzero(differ)[0]) // output.dtype.itemsize
        raise AssertionError(
            f"{call.case}: piece {call.piece} [{call.lo}, {call.hi}): element {at} of the rows "
            f"{rows} of '{name}' depends on bytes outside the contract, or was not written"
        )
    if is_partial:
        one[untouched[0] & untouched[1]] = 0
    output[rows] = one.view(output.dtype).reshape(output[rows].shape)


def as_bytes(values: Array) -> NDArray[np.uint8]:
    return np.frombuffer(values.tobytes(), np.uint8).copy()


def same(case: Case, expected: Arrays, found: Arrays) -> None:
    """Outputs of two runners agree as the contract says: bit for bit, or within its tolerance."""
    tolerance = case.contract.exact.tolerance
    for name, want in expected.items():
        got = found[name]
        if tolerance is None or not dtype(case.dtype_of(name)).is_float:
            is_same = (want == got) | ((want != want) & (got != got))
            assert is_same.all(), f"{case}: '{name}' differs at {np.argwhere(~is_same)[0]}"
        else:
            np.testing.assert_allclose(
                got.astype(np.float64),
                want.astype(np.float64),
                rtol=tolerance.rtol,
                atol=tolerance.atol,
                err_msg=f"{case}: '{name}'",
            )


# ---- inputs -------------------------------------------------------------------------------------


def make_inputs(case: Case) -> Arrays:
    """What the kernel may read, whole; the same for the same case."""
    generator = np.random.default_rng(zlib.crc32(str(case).encode()))
    arrays = {
        name: random_array(generator, case.shape_of(name), case.dtype_of(name))
        for name, each in case.arrays.items()
        if each.access in ("read", "update")
    }
    if case.inputs:
        arrays.update(INPUTS[case.inputs](case, generator))
    return arrays


def random_array(generator: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    kind = dtype(name)
    if kind.is_float:
        return (generator.standard_normal(shape) * 0.5).astype(np.float32).astype(kind.numpy)
    info = np.iinfo(kind.numpy)
    return generator.integers(info.min, info.max, shape, kind.numpy, endpoint=True)


def special_floats(case: Case, generator: np.random.Generator) -> Arrays:
    """Values at which rounding, saturation and NaN show, in every float argument that is read."""
    bits = generator.integers(0, 2**32, 4096, np.uint32)
    odd = [65504, 65519.996, 65520, 1e6, 3.4e38, 3.3961776e38, np.inf, np.nan, 0.0, 6e-8, 2.98e-8]
    odd += [1.0009765625, 1.00048828125, 1.00146484375, 1.00390625, 1.01171875, 1e-45]
    pool = np.concatenate(
        [np.array(odd, np.float32), -np.array(odd, np.float32), bits.view(np.float32)]
    )
    found = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for name, each in case.arrays.items():
            if each.access in ("read", "update") and dtype(case.dtype_of(name)).is_float:
                shape = case.shape_of(name)
                found[name] = np.resize(pool, shape).astype(dtype(case.dtype_of(name)).numpy)
    return found


def tied_logits(case: Case, generator: np.random.Generator) -> Arrays:
    shape = case.shape_of("logits")
    return {"logits": generator.integers(-2, 3, shape).astype(np.float32) * np.float32(0.5)}


def broken_logits(case: Case, generator: np.random.Generator) -> Arrays:
    """NaN and infinities among the logits, and rows of nothing else."""
    odd = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 0.0, -0.0, 1.0], np.float32)
    logits = generator.choice(odd, case.shape_of("logits"))
    logits[::5] = np.nan
    logits[1::5] = -np.inf
    logits[2::5, 0] = np.inf
    return {"logits": logits}


def some_experts(case: Case) -> tuple[int, int]:
    first = int(case.scalars.get("first", 0))
    number = case.symbols["ends"] - 1 if "ends" in case.symbols else case.symbols["experts"]
    return first, number


def uniform_ids(case: Case, generator: np.random.Generator) -> Arrays:
    """Distinct experts for each token, half of them not ours, as far as there are so many."""
    first, number = some_experts(case)
    tokens, top_k = case.symbols["tokens"], case.symbols["top_k"]
    total = max(first + 2 * number, top_k)
    ids = np.argsort(generator.random((tokens, total)), axis=1)[:, :top_k]
    return {"ids": ids.astype(np.int32)}


def one_expert_ids(case: Case, generator: np.random.Generator) -> Arrays:
    first, _ = some_experts(case)
    return {"ids": np.full((case.symbols["tokens"], case.symbols["top_k"]), first, np.int32)}


def foreign_ids(case: Case, generator: np.random.Generator) -> Arrays:
    """No pair is ours; some ids are no experts at all."""
    first, number = some_experts(case)
    pool = np.array([first - 1, first + number, -1, 2**31 - 1, -(2**31)], np.int32)
    return {"ids": generator.choice(pool, (case.symbols["tokens"], case.symbols["top_k"]))}


def grouped(case: Case, ids: Array, first: int, number: int) -> Arrays:
    """offsets, src and slot of these ids, piece by piece, pair by pair."""
    tokens, top_k = case.symbols["tokens"], case.symbols["top_k"]
    offsets = np.zeros((len(case.bounds), number + 1), np.int32)
    src = np.full((tokens, top_k), 2**31 - 1, np.int32)
    slot = np.full((tokens, top_k), -1, np.int32)
    for piece, (lo, hi) in enumerate(case.bounds):
        row = lo * top_k
        for expert in range(number):
            offsets[piece, expert] = row
            for token, k in np.argwhere(ids[lo:hi] == first + expert):
                src.reshape(-1)[row] = lo + token
                slot[lo + token, k] = row
                row += 1
        offsets[piece, number] = row
    return {"offsets": offsets, "src": src, "slot": slot}


def grouped_by(ids: Callable[[Case, np.random.Generator], Arrays]) -> Maker:
    def make(case: Case, generator: np.random.Generator) -> Arrays:
        number = case.symbols["experts"]
        made = grouped(case, ids(case, generator)["ids"], 0, number)
        return {
            name: each.reshape(case.shape_of(name))
            for name, each in made.items()
            if name in case.given
        }

    return make


def summed(case: Case, generator: np.random.Generator) -> Arrays:
    """Slots into the piece's own rows, half of the pairs without one; unused rows are NaN."""
    tokens, top_k = case.symbols["tokens"], case.symbols["top_k"]
    slot = np.full((tokens, top_k), -1, np.int32)
    for lo, hi in case.bounds:
        rows = generator.permutation(np.arange(lo * top_k, hi * top_k))
        slot[lo:hi] = np.where(
            generator.random((hi - lo, top_k)) < 0.5, rows.reshape(hi - lo, top_k), -1
        )
    rows_of = random_array(generator, case.shape_of("rows"), case.dtype_of("rows"))
    unused = np.setdiff1d(np.arange(tokens * top_k), slot)
    rows_of.reshape(tokens * top_k, case.symbols["hidden"])[unused] = np.nan
    return {"slot": slot, "rows": rows_of}


def no_slots(case: Case, generator: np.random.Generator) -> Arrays:
    return {"slot": np.full(case.shape_of("slot"), -1, np.int32)}


def routed(case: Case, generator: np.random.Generator) -> Arrays:
    """Ids, some of which are no experts, with routes and offsets that belong to them."""
    extents = case.symbols
    capacity, ranks, slots = extents["capacity"], extents["ranks"], extents.get("slots", 0)
    local = int(case.scalars.get("local", extents.get("local", 3)))
    tokens = 3 * capacity // 4
    topk = generator.integers(-1, ranks * local + 1, (capacity, extents.get("top_k", slots)))
    kind = dtype(case.dtype_of("topk") if "topk" in case.given else "i32").numpy
    if kind.itemsize == 8:
        topk[generator.random(topk.shape) < 0.1] = 2**32
    routes = generator.integers(-(2**31), 2**31, (capacity, slots, 2)).astype(np.int32)
    number = [0] * ranks
    for token in range(tokens):
        homes = sorted(
            {each // local for each in topk[token].tolist() if 0 <= each < ranks * local}
        )
        routes[token] = -1
        for entry, home in enumerate(homes[:slots]):
            routes[token, entry] = home, number[home]
            number[home] += 1
    room = extents.get("rows", capacity) - max(number)
    found = {
        "topk": topk.astype(kind),
        "tokens": np.array([tokens], np.int32),
        "routes": routes,
        "offsets": generator.integers(0, room + 1, ranks).astype(np.int32),
        "fault": np.zeros(case.shape_of("fault"), np.uint32) if "fault" in case.given else None,
    }
    return {name: each for name, each in found.items() if name in case.given and each is not None}


def routed_with_fault(case: Case, generator: np.random.Generator) -> Arrays:
    found = routed(case, generator)
    return {**found, "fault": np.ones_like(found["fault"])}


def stamped(case: Case, generator: np.random.Generator) -> Arrays:
    """A stamp that belongs to the ids."""
    found = routed(case, generator)
    ids = found["topk"][: int(found["tokens"][0])]
    return {**found, "stamp": np.array([stamp_of(ids)], np.uint64)}


def some_tokens(case: Case, generator: np.random.Generator) -> Arrays:
    tokens = 3 * case.symbols["capacity"] // 4
    return {**special_floats(case, generator), "tokens": np.array([tokens], np.int32)}


def small_counts(case: Case, generator: np.random.Generator) -> Arrays:
    return {"counts": generator.integers(0, 1000, case.shape_of("counts"), np.int32)}


def spanned(case: Case, generator: np.random.Generator) -> Arrays:
    """Rows from each rank, with room between; codes of fp8 may be anything."""
    rows, ranks = case.symbols["rows"], case.symbols["ranks"]
    starts = np.sort(generator.choice(rows, ranks, replace=False))
    room = np.diff(np.append(starts, rows))
    spans = np.stack([starts, generator.integers(0, room + 1)], axis=1).astype(np.int32)
    found = {**special_floats(case, generator), "spans": spans}
    if "faults" in case.given:
        found["faults"] = np.zeros(ranks, np.uint32)
    if "w" in case.given:
        found["w"] = generator.random(case.shape_of("w"), np.float32)
    return found


def spanned_with_fault(case: Case, generator: np.random.Generator) -> Arrays:
    found = spanned(case, generator)
    found["faults"][-1] = 1
    return found


Maker: TypeAlias = Callable[[Case, np.random.Generator], Arrays]
INPUTS: dict[str, Maker] = {
    "special": special_floats,
    "ties": tied_logits,
    "broken": broken_logits,
    "uniform": uniform_ids,
    "one expert": one_expert_ids,
    "foreign": foreign_ids,
    "summed": summed,
    "no slots": no_slots,
    "routed": routed,
    "routed, with a fault": routed_with_fault,
    "stamped": stamped,
    "some tokens": some_tokens,
    "small counts": small_counts,
    "spanned": spanned,
    "spanned, with a fault": spanned_with_fault,
    "grouped uniform": grouped_by(uniform_ids),
    "grouped on one": grouped_by(one_expert_ids),
    "grouped on none": grouped_by(foreign_ids),
}
BLOCKS = ("summed", "no slots")  # inputs whose gathers stay in the rows of their own piece


# ---- cases --------------------------------------------------------------------------------------


def convert_cases() -> Iterator[Case]:
    floats = ("f32", "f16", "bf16")
    for x in floats:
        for y in floats:
            types = {"x": x, "y": y}
            yield Case("convert", {"n": 37, "m": 129}, types, cut=THREE, inputs="special")
            yield Case("convert", {"n": 33, "m": 64}, types, offset=1)
    for kind in ("i32", "i64", "u8", "fp8_e4m3", "f64"):
        types = {"x": kind, "y": kind}
        yield Case("convert", {"n": 29, "m": 10}, types, cut=UNEQUAL, count=23)
    for n, m in ((0, 8), (1, 1), (5, 1), (3, 7), (70, 2560)):
        yield Case("convert", {"n": n, "m": m}, {"x": "f32", "y": "f16"}, cut=MANY)
    yield Case("convert", {"n": 64, "m": 16}, {"x": "f16", "y": "f32"}, cut=THREE, count=0)


def rms_mix_cases() -> Iterator[Case]:
    for tokens, hidden in ((0, 64), (1, 1), (5, 7), (9, 1030), (6, 2560)):
        for half in ("f16", "bf16"):
            symbols = {"tokens": tokens, "hidden": hidden}
            types = {"mixed_h": half, "w": "f32" if half == "f16" else "bf16"}
            yield Case("rms_mix", symbols, types, cut=THREE)
    symbols = {"tokens": 11, "hidden": 72}
    yield Case("rms_mix", symbols, cut=UNEQUAL, count=7, offset=1)
    yield Case("rms_mix", symbols, {"w": "f16"}, absent=("mixed",), inputs="special")
    yield Case("rms_mix", symbols, absent=("mixed_h",))


def router_cases() -> Iterator[Case]:
    for tokens, experts, top_k in ((0, 8, 2), (1, 1, 1), (9, 33, 32), (20, 60, 4), (13, 512, 10)):
        symbols = {"tokens": tokens, "experts": experts, "top_k": top_k}
        for inputs in ("", "ties", "broken"):
            yield Case("router", symbols, cut=THREE, inputs=inputs)
    yield Case("router", {"tokens": 40, "experts": 1024, "top_k": 22}, cut=UNEQUAL, count=31)


def group_rows_cases() -> Iterator[Case]:
    for tokens, top_k, ends in ((0, 4, 9), (1, 1, 2), (37, 4, 9), (100, 3, 60), (500, 10, 257)):
        for cut in (WHOLE, THREE):
            symbols = {"tokens": tokens, "top_k": top_k, "pieces": len(cut) - 1, "ends": ends}
            for inputs in ("uniform", "one expert", "foreign"):
                scalars = {"first": 0 if cut is WHOLE else ends - 1}
                yield Case("group_rows", symbols, scalars=scalars, cut=cut, inputs=inputs)
    symbols = {"tokens": 61, "top_k": 5, "pieces": 4, "ends": 1025}
    for count in (0, 1, 50):
        scalars = {"first": 3}
        yield Case(
            "group_rows", symbols, scalars=scalars, cut=UNEQUAL, count=count, inputs="uniform"
        )


def sums_cases(kernel: str, result: str) -> Iterator[Case]:
    for tokens, top_k, hidden in ((0, 4, 8), (1, 1, 1), (7, 3, 5), (12, 10, 72), (5, 32, 260)):
        for rows, total in (("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")):
            symbols = {"tokens": tokens, "top_k": top_k, "hidden": hidden}
            types = {"rows": rows, result: "f32" if result == "out" else total}
            yield Case(kernel, symbols, types, cut=THREE, inputs="summed")
    symbols = {"tokens": 19, "top_k": 4, "hidden": 64}
    yield Case(kernel, symbols, cut=UNEQUAL, count=11, inputs="summed", offset=1)
    yield Case(kernel, symbols, inputs="no slots")
    if result == "sum":
        yield Case(kernel, symbols, {"sum": "f16"}, inputs="summed")
    else:
        yield Case(kernel, symbols, absent=("shared",), inputs="summed")
        yield Case(kernel, symbols, {"shared": "f16"}, cut=MANY, inputs="summed")


def residual_add_cases() -> Iterator[Case]:
    for n, m in ((0, 8), (1, 1), (7, 9), (33, 64)):
        for y in ("f32", "f16", "bf16"):
            yield Case("residual_add", {"n": n, "m": m}, {"y": y}, cut=THREE)
    yield Case("residual_add", {"n": 30, "m": 6}, cut=UNEQUAL, count=17, offset=1)


def grouped_cases(kernel: str, first: str, last: str) -> Iterator[Case]:
    sizes = ((0, 2, 16, 8, 4), (1, 1, 8, 8, 1), (23, 4, 72, 40, 6), (70, 2, 64, 136, 3))
    for size in sizes:
        for kind in ("f16", "bf16"):
            for inputs in ("grouped uniform", "grouped on one", "grouped on none"):
                types = {first: kind, "w": kind, last: kind}
                yield Case(kernel, grouped_symbols(*size, 3), types, cut=THREE, inputs=inputs)
    symbols = grouped_symbols(40, 2, 32, 24, 5, 4)
    yield Case(kernel, symbols, cut=UNEQUAL, count=27, inputs="grouped uniform")


def grouped_symbols(
    tokens: int, top_k: int, hidden: int, ff: int, experts: int, pieces: int
) -> dict[str, int]:
    return {
        "tokens": tokens,
        "top_k": top_k,
        "pairs": tokens * top_k,
        "hidden": hidden,
        "ff": ff,
        "experts": experts,
        "pieces": pieces,
    }


def dense_cases() -> Iterator[Case]:
    for n, k, out in ((0, 8, 8), (1, 8, 1), (37, 72, 40), (20, 64, 136)):
        for kind in ("f16", "bf16"):
            symbols = {"n": n, "k": k, "out": out}
            yield Case("dense", symbols, {"x": kind, "w": kind}, cut=THREE)
    symbols = {"n": 25, "k": 40, "out": 16}
    yield Case("dense", symbols, {"y": "f16"}, absent=("gate",), cut=UNEQUAL, count=19)


def dense_up_cases() -> Iterator[Case]:
    for n, k, ff in ((0, 8, 8), (1, 8, 8), (37, 72, 40)):
        for kind in ("f16", "bf16"):
            symbols = {"n": n, "k": k, "ff": ff}
            yield Case("dense_up", symbols, {"x": kind, "w": kind, "h": kind}, cut=THREE)
    yield Case("dense_up", {"n": 25, "k": 40, "ff": 16}, cut=UNEQUAL, count=19)


def ep_routing_cases() -> Iterator[Case]:
    for ranks, local, top_k, capacity in (
        (1, 1, 1, 1), (2, 5, 4, 8), (3, 129, 3, 1200), (64, 2, 22, 60), (4, 8, 32, 5000),
    ):  # fmt: skip
        own = {"capacity": capacity, "top_k": top_k}
        slots = min(top_k, ranks)
        symbols = {**own, "slots": slots, "ranks": ranks, "local": local}
        scalars = {"active": max(1, 2 * capacity // 3)}
        yield Case("ep_count", symbols, scalars=scalars, inputs="routed")
        symbols = {"ranks": ranks, "local": local}
        scalars = {"rank": ranks - 1}
        yield Case("ep_exchange", symbols, scalars=scalars)
        for layout, parts in (("token_major", local), ("rank_major", ranks)):
            yield Case(
                "ep_scan",
                {**symbols, "parts": parts},
                scalars={**scalars, "stride": 77},
                options={"layout": layout},
                inputs="small counts",
            )
        for inputs in ("routed", "stamped"):
            scalars = {"rank": ranks // 2, "active": capacity}
            yield Case("ep_fresh", {**own, "ranks": ranks}, scalars=scalars, inputs=inputs)
    symbols = {"capacity": 40, "top_k": 4, "slots": 2, "ranks": 2, "local": 3}
    scalars = {"active": 40}
    yield Case("ep_count", symbols, absent=("status",), scalars=scalars, inputs="routed")
    narrow = {"topk": "i32"}
    yield Case("ep_count", symbols, narrow, scalars=scalars, inputs="routed")
    fresh = {"capacity": 40, "top_k": 4, "ranks": 2}
    yield Case("ep_fresh", fresh, narrow, scalars={**scalars, "rank": 0}, inputs="stamped")


def ep_dispatch_cases() -> Iterator[Case]:
    fp8 = {"x": "fp8_e4m3", "y": "fp8_e4m3"}
    for ranks, top_k, hidden in (
        (1, 1, 8),
        (2, 4, 136),
        (3, 8, 2880),
        (64, 22, 264),
        (2, 32, 1152),
    ):
        symbols = ep_symbols(24, hidden, top_k, ranks)
        symbols["rows"] = min(symbols["rows"], 96)
        scalars = {"rank": ranks - 1, "active": 24, "local": 3}
        kinds = {"scalars": scalars, "inputs": "routed", "cut": THREE}
        yield Case("ep_dispatch", symbols, absent=("s", "ys"), **kinds)
    symbols = ep_symbols(30, 256, 8, 4)
    scalars = {"rank": 1, "active": 20, "local": 5}
    kinds = {"scalars": scalars, "inputs": "routed", "cut": UNEQUAL}
    yield Case("ep_dispatch", symbols, fp8, **kinds)
    yield Case("ep_dispatch", symbols, fp8, absent=("topk_w", "fault"), **kinds)
    yield Case("ep_dispatch", symbols, absent=("s", "ys", "ids", "w", "topk_w"), **kinds)
    yield Case("ep_dispatch_quant", symbols, **kinds)
    yield Case("ep_dispatch_quant", symbols, absent=("ids", "w", "topk_w", "fault"), **kinds)
    narrow = {"topk": "i32"}
    yield Case("ep_dispatch", symbols, narrow, absent=("s", "ys"), **kinds)
    symbols_of = ("rows", "top_k", "ranks")
    for rows, top_k, ranks in ((1, 1, 1), (50, 6, 4), (3000, 8, 64)):
        given = dict(zip(symbols_of, (rows, top_k, ranks), strict=True))
        yield Case("ep_received", given, inputs="spanned")
    wide = ep_symbols(10, 9216, 2, 2)
    yield Case("ep_dispatch_quant", wide, **kinds)
    for kernel in ("ep_dispatch", "ep_dispatch_quant"):
        absent = ("s", "ys") if kernel == "ep_dispatch" else ()
        given = {"absent": absent, "scalars": scalars, "inputs": "routed, with a fault"}
        yield Case(kernel, symbols, **given)


def ep_symbols(capacity: int, hidden: int, top_k: int, ranks: int) -> dict[str, int]:
    return {
        "capacity": capacity,
        "hidden": hidden,
        "top_k": top_k,
        "slots": min(top_k, ranks),
        "ranks": ranks,
        "rows": ranks * capacity,
        "scales": hidden // 128,
    }


def ep_quantise_cases() -> Iterator[Case]:
    for capacity, hidden in ((1, 128), (9, 256), (20, 2944), (7, 9216)):
        symbols = {"capacity": capacity, "hidden": hidden, "scales": hidden // 128}
        scalars = {"active": capacity}
        yield Case("ep_quantise", symbols, scalars=scalars, cut=THREE, inputs="some tokens")


def ep_identity_cases() -> Iterator[Case]:
    for ranks, rows, hidden in ((1, 5, 8), (2, 40, 136), (64, 130, 256)):
        symbols = {"rows": rows, "hidden": hidden, "scales": hidden // 128, "top_k": 5}
        symbols["ranks"] = ranks
        for inputs in ("spanned", "spanned, with a fault"):
            yield Case("ep_identity", symbols, absent=("s",), inputs=inputs)
            in_place = {name: each for name, each in symbols.items() if name != "scales"}
            yield Case("ep_identity_in_place", in_place, inputs=inputs)
        alone = ("s", "w", "faults", "agreed")
        yield Case("ep_identity", symbols, absent=alone, inputs="spanned")
    symbols = {"rows": 40, "hidden": 384, "scales": 3, "top_k": 3, "ranks": 4}
    yield Case("ep_identity", symbols, {"x": "fp8_e4m3"}, inputs="spanned")
    yield Case("ep_identity", symbols, {"x": "fp8_e4m3"}, absent=("w",), inputs="spanned")


def ep_combine_cases() -> Iterator[Case]:
    for ranks, slots, hidden in (
        (1, 1, 8), (2, 2, 136), (4, 3, 2880), (8, 8, 520), (64, 22, 136), (64, 32, 264),
    ):  # fmt: skip
        symbols = ep_symbols(24, hidden, slots, ranks) | {"words": ranks}
        symbols["rows"] = min(symbols["rows"], 96)
        del symbols["top_k"], symbols["scales"]
        kinds = {"scalars": {"active": 24}, "cut": THREE}
        yield Case("ep_combine", symbols, inputs="routed", **kinds)
        yield Case("ep_combine", symbols, absent=("fault",), inputs="routed", **kinds)
        yield Case("ep_combine", symbols, inputs="routed, with a fault", **kinds)


CASES: tuple[Case, ...] = (
    *convert_cases(),
    *rms_mix_cases(),
    *router_cases(),
    *group_rows_cases(),
    *sums_cases("weighted_sums", "sum"),
    *sums_cases("moe_combine", "out"),
    *residual_add_cases(),
    *grouped_cases("grouped_up", "x", "h"),
    *grouped_cases("grouped_down", "h", "rows"),
    *dense_cases(),
    *dense_up_cases(),
    *ep_routing_cases(),
    *ep_dispatch_cases(),
    *ep_quantise_cases(),
    *ep_identity_cases(),
    *ep_combine_cases(),
)
