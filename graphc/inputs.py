"""Values for the buffers that a caller fills: seeded, distinct, and the same for every schedule.

A buffer's values follow from the seed, its name, shape and dtype alone. Floats are distinct in
every element as far as the dtype can tell them apart within four binades (so a piece that lands in
the wrong place shows): magnitudes in [1/16, 1), both signs; a weight of two or more dimensions is
scaled by a power of two to about 1/sqrt(last dimension), so that sums stay of order one. Integers
are a permutation of 0, 1, 2, ..., within what their dtype holds, or, where the spec says what they
are below, drawn from 0 up to that; if it names odd ones, about one in 16 is one of these. Rows that
the count leaves unused are poison: 0xFF bytes, which floats read as NaN and signed integers as -1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import log2, prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from graphc.backends.binding import check_count
from graphc.dtypes import dtype
from graphc.ir import POISON, Buffer, Program, Role
from graphc.plan import Plan
from graphc.text.diagnostics import UsageError, no_memory
from graphc.text.suggest import did_you_mean

FILLED = (Role.INPUT, Role.INOUT, Role.WEIGHT, Role.STATE)
BINADES = 2  # bits of the exponent that vary
ODD_SHARE = 1 / 16
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # spreads small numbers over 64 bits
AT_ONCE = 1 << 18  # elements that are made together, so that making them takes no more memory

# dtype -> (bits of the mantissa, bits of the exponent, exponent bias)
FLOAT_LAYOUT = {
    "f64": (52, 11, 1023),
    "f32": (23, 8, 127),
    "f16": (10, 5, 15),
    "bf16": (7, 8, 127),
    "fp8_e4m3": (3, 4, 7),
}


def random_inputs(
    plan: Plan | Program,
    *,
    seed: int = 0,
    count: int | None = None,
    null: Collection[str] = (),
) -> dict[str, NDArray[Any]]:
    """An array for every buffer that the caller fills, but for those of ``null``.

    These are names of optional buffers; one without a rank or iteration is that of all. A
    ``UsageError`` says of another name that it is none of them. All variants of a plan have the
    same such buffers.
    """
    program = plan if isinstance(plan, Program) else plan.variants[0].schedule.program
    rows = None if count is None else check_count(program, count)
    buffers = filled_buffers(program)
    absent = {name for each in null for name in optional_named(each, buffers)}
    return {
        buffer.name: random_array(buffer, seed=seed, count=rows)
        for buffer in buffers
        if buffer.name not in absent
    }


def filled_buffers(program: Program) -> list[Buffer]:
    """The buffers that the caller fills, those that may stay unbound among them."""
    return [
        each for each in program.buffers.values() if each.role in FILLED and each.overlay is None
    ]


def optional_named(name: str, buffers: Iterable[Buffer]) -> list[str]:
    """The optional buffers of that name, of all ranks and iterations if it names none."""
    optional = [each.name for each in buffers if each.is_optional]
    found = [each for each in optional if name in (each, each.rsplit("/", 1)[-1])]
    if not found:
        known = dict.fromkeys(each.rsplit("/", 1)[-1] for each in optional)
        there_are = f"there are {', '.join(known)}" if known else "there is none"
        hint = did_you_mean(name, known) or there_are
        raise UsageError(f"'{name}' is no optional input, so it cannot be null: {hint}")
    return found


def random_array(buffer: Buffer, *, seed: int = 0, count: int | None = None) -> NDArray[Any]:
    """The values of one buffer.

    >>> x = random_array(Buffer("x", "g0", "f32", (4, 3)))
    >>> x.shape, len(set(x.ravel().tolist())), bool((abs(x) < 1).all())
    ((4, 3), 12, True)
    """
    try:
        return made_array(buffer, seed, count)
    except MemoryError:
        what = f"cannot allocate the {buffer.nbytes} bytes of an input for '{buffer.name}'"
        raise no_memory("allocate", what) from None


def made_array(buffer: Buffer, seed: int, count: int | None) -> NDArray[Any]:
    random = np.random.default_rng([seed, crc32(buffer.name.encode())])
    total = prod(buffer.shape)
    kind = dtype(buffer.dtype)
    if kind.is_float:
        values = random_floats(random, total, buffer.dtype, scale_exponent(buffer))
    elif buffer.below is not None:
        values = bounded_integers(random, total, buffer.below, buffer.odd).astype(kind.numpy)
    else:
        values = random_integers(random, total, kind.numpy)
    array = values.reshape(buffer.shape)
    if count is not None and buffer.per_count:
        array[buffer.per_count * count :].view(np.uint8)[...] = POISON
    return array


def scale_exponent(buffer: Buffer) -> int:
    """The power of two by which a weight is scaled."""
    if buffer.role is not Role.WEIGHT or len(buffer.shape) < 2 or not buffer.shape[-1]:
        return 0
    return -round(log2(buffer.shape[-1]) / 2)


def random_floats(
    random: np.random.Generator, total: int, name: str, exponent: int
) -> NDArray[Any]:
    """Sign, two bits of the exponent and the mantissa from a one-to-one scramble of the index."""
    mantissa_bits, exponent_bits, bias = FLOAT_LAYOUT[name]
    bits = 1 + BINADES + mantissa_bits
    scramble = Scramble.drawn(random, bits)
    # The smallest of the four binades stays above the subnormal numbers.
    base = max(1, bias - 2**BINADES + exponent)
    element = dtype(name).numpy
    raw = np.empty(total, f"u{element.itemsize}")
    for start in range(0, total, AT_ONCE):
        part = raw[start : start + AT_ONCE]
        codes = scramble.codes(start, start + len(part))
        part[...] = float_bits(codes, mantissa_bits, exponent_bits, base)
    return raw.view(element)


def float_bits(
    codes: NDArray[np.uint64], mantissa_bits: int, exponent_bits: int, base: int
) -> NDArray[np.uint64]:
    mantissa = codes & np.uint64((1 << mantissa_bits) - 1)
    binade = (codes >> np.uint64(mantissa_bits)) & np.uint64((1 << BINADES) - 1)
    sign = codes >> np.uint64(mantissa_bits + BINADES)
    raw = mantissa | (binade + np.uint64(base)) << np.uint64(mantissa_bits)
    raw |= sign << np.uint64(mantissa_bits + exponent_bits)
    return raw


def random_integers(
    random: np.random.Generator, total: int, kind: np.dtype[np.generic]
) -> NDArray[Any]:
    limit = min(int(np.iinfo(kind).max) + 1, 1 << 62)  # type: ignore[type-var]
    return (random.permutation(total) % limit).astype(kind)


def bounded_integers(
    random: np.random.Generator, total: int, below: int, odd: tuple[int, ...]
) -> NDArray[Any]:
    """From 0 up to a bound; now and then one of the odd ones."""
    values = random.integers(below, size=total)
    if odd:
        is_odd = random.random(total) < ODD_SHARE
        values[is_odd] = random.choice(np.array(odd), int(is_odd.sum()))
    return values


@dataclass(frozen=True, slots=True)
class Scramble:
    """Distinct numbers below ``2**bits`` for each ``2**bits`` indices: every step is one-to-one.

    >>> len(set(Scramble.drawn(np.random.default_rng(0), 10).codes(0, 1024).tolist()))
    1024
    """

    bits: int
    offset: np.uint64
    factors: tuple[np.uint64, ...]

    @classmethod
    def drawn(cls, random: np.random.Generator, bits: int) -> Scramble:
        offset, *factors = (random.integers(1 << bits, dtype=np.uint64) for _ in range(4))
        return cls(bits, offset, tuple(each | np.uint64(1) for each in factors))

    def codes(self, start: int, stop: int) -> NDArray[np.uint64]:
        mask = np.uint64((1 << self.bits) - 1)
        index = np.arange(start, stop, dtype=np.uint64)
        codes = (index + self.offset) & mask
        # Where numbers come again they come in another order: no two rows of a weight are alike.
        turns = (index >> np.uint64(self.bits)) * GOLDEN >> np.uint64(64 - self.bits)
        for factor in self.factors:
            codes *= factor
            codes &= mask
            codes ^= codes >> np.uint64(self.bits // 2)
            codes ^= turns
        return codes
