"""Cases of dispatch and combine: a seeded list, kept as it is, and the inputs of each.

Small cases are drawn so that every pair of values of two axes occurs in one of them (a test holds
the list to that); large ones are written out. What runs them is a ``Runner``: the references by
themselves, the backends elsewhere.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from expert_parallel_oracle import Expected, Job, expected
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Pair: TypeAlias = tuple[tuple[str, Any], tuple[str, Any]]
SEED = 3

AXES: dict[str, tuple[Any, ...]] = {
    "layout": ("token_major", "rank_major"),
    "dtype": ("bf16", "fp8_e4m3"),
    "quant": ("separate", "fused"),
    "replays": ("automatic", "explicit", "reused", "rebuilt", "emptied"),
    "ranks": (1, 2, 3, 4, 8, 16, 64),
    "top_k": (1, 2, 3, 4, 5, 8, 22),
    "local": (1, 2, 5, 16, 129),
    "routing": ("uniform", "skewed", "one rank", "alternating", "last choice", "odd", "none"),
    "weights": (True, False),
    "meta": (True, False),
    "shared_buffer": (False, True),
    "few_blocks": (False, True),
}


@dataclass(frozen=True)
class Case:
    """One size of the job, and how it is replayed."""

    layout: str = "token_major"
    dtype: str = "bf16"
    quant: str = "separate"
    replays: str = "automatic"  # or one of those of AXES
    ranks: int = 2
    top_k: int = 4
    local: int = 8
    routing: str = "uniform"
    weights: bool = True
    meta: bool = True
    shared_buffer: bool = False
    few_blocks: bool = False
    hidden: int = 136
    tokens: tuple[int, ...] = (5, 3)  # by rank, over and over
    spare: int = 3  # of the active capacity beyond the most tokens; twice that of the allocated

    def __str__(self) -> str:
        shown = [f"{self.ranks}x{self.local}", f"top{self.top_k}", f"h{self.hidden}"]
        shown += [self.layout, self.dtype, self.replays, self.routing]
        shown += [",".join(map(str, self.tokens))]
        flags = ("weights", "meta", "shared_buffer", "few_blocks")
        return "/".join([*shown, self.quant, *(each for each in flags if getattr(self, each))])

    @property
    def active(self) -> int:
        return max(self.tokens) + self.spare

    @property
    def capacity(self) -> int:
        return self.active + self.spare

    @property
    def experts(self) -> int:
        return self.ranks * self.local

    @property
    def is_explicit(self) -> bool:
        return self.replays != "automatic"

    @property
    def params(self) -> dict[str, Any]:
        """What the spec is given."""
        blocks = 3 if self.few_blocks else 0
        return {
            "ranks": self.ranks,
            "capacity": self.capacity,
            "active": self.active,
            "hidden": self.hidden,
            "experts": self.experts,
            "top_k": self.top_k,
            "layout": self.layout,
            "dtype": self.dtype,
            "quant": self.quant,
            "prepare": "explicit" if self.is_explicit else "automatic",
            "meta": self.meta,
            "shared_buffer": self.shared_buffer,
            "dispatch_blocks": blocks,
            "combine_blocks": blocks,
        }


@dataclass(frozen=True)
class Inputs:
    """The arrays of all ranks, at capacity; unused rows hold what must not matter."""

    x: list[Array]
    ids: list[Array]
    weights: list[Array] | None
    tokens: list[int]


@dataclass(frozen=True)
class Replay:
    """One replay: whether it is prepared before, and what it is given."""

    is_prepared: bool
    inputs: Inputs


def replays(case: Case) -> list[Replay]:
    """What a case does, step by step."""
    first = inputs_of(case, 0)
    if case.replays == "automatic":
        return [Replay(False, first), Replay(False, inputs_of(case, 1))]
    if case.replays == "explicit":
        return [Replay(True, first)]
    if case.replays == "reused":  # other values, the same routing
        other = inputs_of(case, 1)
        return [
            Replay(True, first),
            Replay(False, replace(other, ids=first.ids, tokens=first.tokens)),
        ]
    if case.replays == "rebuilt":
        return [Replay(True, first), Replay(True, inputs_of(case, 1))]
    empty = [np.full_like(each, -1) for each in first.ids]
    return [Replay(True, first), Replay(True, replace(first, ids=empty))]


def job_of(case: Case, inputs: Inputs) -> Job:
    return Job(
        x=[each.view(np.uint16) for each in inputs.x],
        ids=inputs.ids,
        weights=inputs.weights,
        tokens=inputs.tokens,
        experts=case.experts,
        layout=case.layout,
        stride=case.active,
        is_fp8=case.dtype == "fp8_e4m3",
    )


def wanted(case: Case, inputs: Inputs) -> list[Expected]:
    return expected(job_of(case, inputs), has_weights=case.meta)


def inputs_of(case: Case, number: int) -> Inputs:
    """Those of a case's replay ``number``: the same for the same case."""
    generator = np.random.default_rng([SEED, number, zlib.crc32(str(case).encode())])
    tokens = [case.tokens[(rank + number) % len(case.tokens)] for rank in range(case.ranks)]
    shape = (case.capacity, case.top_k)
    ids = [ROUTINGS[case.routing](case, generator) for _ in range(case.ranks)]
    weights = [weights_of(shape, generator) for _ in range(case.ranks)]
    return Inputs(
        x=[distinct(case, rank, generator) for rank in range(case.ranks)],
        ids=ids,
        weights=weights if case.weights else None,
        tokens=tokens,
    )


def weights_of(shape: tuple[int, int], generator: np.random.Generator) -> Array:
    """Of every other token such that sums in another order are others: large ones cancel out."""
    weights = generator.random(shape, np.float32) + np.float32(0.1)
    large = generator.choice(np.array([2**24, -(2**24), 1, 3], np.float32), shape)
    weights[1::2] = large[1::2]
    return weights


def distinct(case: Case, rank: int, generator: np.random.Generator) -> Array:
    """No two of 8192 neighbours are alike: both signs, 5 bits of the exponent, the mantissa.

    For fp8, in which a block has one scale, the exponent has 2 bits.
    """
    kept = 5 if case.dtype == "bf16" else 2
    bits = 1 + kept + 7
    total = case.capacity * case.hidden
    start = int(generator.integers(1 << bits))
    codes = (np.arange(total, dtype=np.int64) * (2 * rank + 2003) + start) % (1 << bits)
    sign, rest = codes >> (kept + 7), codes & ((1 << kept + 7) - 1)
    raw = (sign << 15 | rest + ((127 - 2 ** (kept - 1)) << 7)).astype(np.uint16)
    return raw.view(ml_dtypes.bfloat16).reshape(case.capacity, case.hidden)


def uniform(case: Case, generator: np.random.Generator) -> Array:
    """Distinct experts as far as there are so many."""
    shape = (case.capacity, case.top_k)
    if case.experts < case.top_k:
        return generator.integers(0, case.experts, shape)
    drawn = [generator.choice(case.experts, case.top_k, replace=False) for _ in range(shape[0])]
    return np.array(drawn, np.int64)


def skewed(case: Case, generator: np.random.Generator) -> Array:
    """Most go to the lowest experts, often twice to the same one."""
    share = generator.random((case.capacity, case.top_k)) ** 6
    return (share * case.experts).astype(np.int64)


def one_rank(case: Case, generator: np.random.Generator) -> Array:
    """All choices of a token are on one rank."""
    home = generator.integers(0, case.ranks, (case.capacity, 1))
    return home * case.local + generator.integers(0, case.local, (case.capacity, case.top_k))


def alternating(case: Case, generator: np.random.Generator) -> Array:
    """Ranks in turn, from the last one down, with no route in between."""
    lane = np.arange(case.top_k)[None, :] + np.arange(case.capacity)[:, None]
    home = case.ranks - 1 - lane % case.ranks
    ids = home * case.local + generator.integers(0, case.local, lane.shape)
    return np.where(lane % 3 == 1, -1, ids)


def last_choice(case: Case, generator: np.random.Generator) -> Array:
    """Only the last choice is a route."""
    ids = np.full((case.capacity, case.top_k), -1, np.int64)
    ids[:, -1] = generator.integers(0, case.experts, case.capacity)
    return ids


def odd(case: Case, generator: np.random.Generator) -> Array:
    """Ids that are no experts, though some would be in fewer bits; tokens of nothing else."""
    wrong = [-1, -case.experts, case.experts, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -(2**63)]
    shape = (case.capacity, case.top_k)
    is_odd = generator.random(shape) < 0.4
    is_odd[::3] = True
    return np.where(
        is_odd, generator.choice(np.array(wrong, np.int64), shape), uniform(case, generator)
    )


def no_routes(case: Case, generator: np.random.Generator) -> Array:
    return np.full((case.capacity, case.top_k), -1, np.int64)


ROUTINGS = {
    "uniform": uniform,
    "skewed": skewed,
    "one rank": one_rank,
    "alternating": alternating,
    "last choice": last_choice,
    "odd": odd,
    "none": no_routes,
}


# ---- the list -----------------------------------------------------------------------------------


@cache
def small_cases() -> tuple[Case, ...]:
    """Cases until every pair of values has been seen; of several, that with the most new pairs."""
    drawn = random.Random(SEED)
    missing = {pair for pair in pairs_of_axes() if is_possible(dict(pair))}
    found: list[Case] = []
    while missing:
        best = max(
            (one_small(drawn, missing) for _ in range(20)), key=lambda each: len(new(each, missing))
        )
        missing -= new(best, missing)
        found.append(best)
    return tuple(found)


def one_small(drawn: random.Random, missing: set[Pair]) -> Case:
    """A case at random that has one of the missing pairs."""
    first = drawn.choice(sorted(missing, key=str))
    while True:
        values = {name: drawn.choice(values) for name, values in AXES.items()} | dict(first)
        if is_possible(values):
            break
    most = 9 if values["ranks"] < 16 else 4
    tokens = tuple(drawn.randint(0, most) for _ in range(min(values["ranks"], 3)))
    hidden = 256 if values["dtype"] == "fp8_e4m3" else drawn.choice((8, 136, 264))
    return Case(**values, hidden=hidden, tokens=tokens)


def is_possible(values: Mapping[str, Any]) -> bool:
    """What the spec refuses, or what makes no difference."""
    is_fused, is_shared = values.get("quant") == "fused", values.get("shared_buffer")
    is_fp8 = values.get("dtype") == "fp8_e4m3"
    return not (is_shared and (is_fp8 or is_fused)) and not (
        is_fused and "dtype" in values and not is_fp8
    )


def pairs_of_axes() -> Iterator[Pair]:
    for one, two in combinations(AXES, 2):
        for first, second in product(AXES[one], AXES[two]):
            yield (one, first), (two, second)


def new(case: Case, missing: set[Pair]) -> set[Pair]:
    own = ((name, getattr(case, name)) for name in AXES)
    return missing & set(combinations(own, 2))


def large_cases() -> Iterator[Case]:
    """Tiles of the scan, wide rows, other numbers on each rank; one rank without any token."""
    for layout, dtype in product(AXES["layout"], AXES["dtype"]):
        kind = {"layout": layout, "dtype": dtype}
        for hidden in (2944 if dtype == "fp8_e4m3" else 2880, 4096, 7168):
            yield Case(**kind, hidden=hidden, tokens=(8, 3), top_k=8, local=64)
        yield Case(
            **kind, hidden=9216, tokens=(67, 0), top_k=8, local=64, few_blocks=True, spare=29
        )
        yield Case(**kind, tokens=(1, 0, 3, 2), ranks=4, hidden=256, replays="rebuilt")
    for tokens, layout in product((1025, 4097), AXES["layout"]):
        yield Case(
            layout=layout,
            tokens=(tokens, 67, 0),
            ranks=3,
            spare=31,
            replays="explicit",
            few_blocks=True,
        )
    yield Case(
        tokens=(1025, 1), dtype="fp8_e4m3", hidden=128, quant="fused", routing="skewed", top_k=22
    )
    yield Case(tokens=(0,), ranks=3)
    yield Case(tokens=(5, 1), top_k=32, ranks=64, local=2, routing="uniform")


def all_cases() -> tuple[Case, ...]:
    return (*small_cases(), *large_cases())
