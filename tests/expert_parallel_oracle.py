"""What dispatch and combine over ranks must do, said once more: by lists of who gets what.

Nothing here is shared with the kernels or their references. Rows are put into the inboxes of the
ranks one after another; bf16 is rounded by integer arithmetic on the bits, E4M3 by the nearest of
all its values; what a token becomes is worked out from the token, not from what was received.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


@dataclass
class Row:
    """One row that a rank receives."""

    source: int
    token: int
    lanes: list[tuple[int, int]]  # (choice, local expert)


@dataclass
class Expected:
    """What one rank has in the end; rows by their place, of which there is none for padding."""

    received: list[int]
    rows: dict[int, Row] = field(default_factory=dict)
    payload: dict[int, Array] = field(default_factory=dict)  # as bits
    scales: dict[int, Array] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    weights: dict[int, list[float]] = field(default_factory=dict)
    out: list[Array] = field(default_factory=list)  # by token, bits of bf16


@dataclass(frozen=True)
class Job:
    """One step over all ranks: ``x`` as bits of bf16, ids and weights by rank."""

    x: list[Array]
    ids: list[Array]
    weights: list[Array] | None
    tokens: list[int]
    experts: int
    layout: str
    stride: int
    is_fp8: bool

    @property
    def ranks(self) -> int:
        return len(self.x)


def expected(job: Job, *, has_weights: bool = True) -> list[Expected]:
    """``has_weights``: whether the experts see the weights that were sent with the rows."""
    local = job.experts // job.ranks
    inboxes: list[list[Row]] = [[] for _ in range(job.ranks)]
    for source in range(job.ranks):
        for token in range(job.tokens[source]):
            homes: dict[int, Row] = {}
            for choice, expert in enumerate(job.ids[source][token].tolist()):
                if 0 <= expert < job.experts:
                    home, lane = divmod(expert, local)
                    homes.setdefault(home, Row(source, token, [])).lanes.append((choice, lane))
            for home, row in homes.items():
                inboxes[home].append(row)
    found = [delivered(job, rank, inboxes[rank], local) for rank in range(job.ranks)]
    for source in range(job.ranks):
        shares: dict[int, list[tuple[int, Row]]] = {}
        for rank, inbox in enumerate(inboxes):
            for row in inbox:
                if row.source == source:
                    shares.setdefault(row.token, []).append((rank, row))
        for token in range(job.tokens[source]):
            own = [row for _, row in sorted(shares.get(token, []), key=lambda each: each[0])]
            found[source].out.append(summed(job, source, token, own, has_weights))
    return found


def delivered(job: Job, rank: int, inbox: list[Row], local: int) -> Expected:
    """Rows in the order in which they come: by source, and by token within a source."""
    picked, sent = [0] * local, [0] * job.ranks
    result = Expected([])
    for number, row in enumerate(inbox):
        place = (
            number if job.layout == "token_major" else row.source * job.stride + sent[row.source]
        )
        sent[row.source] += 1
        for _, expert in row.lanes:
            picked[expert] += 1
        result.rows[place] = row
        bits = job.x[row.source][row.token]
        if job.is_fp8:
            bits, result.scales[place] = to_fp8(bits)
        result.payload[place] = bits
        width = len(job.ids[row.source][row.token])
        lanes, chosen = [-1] * width, [0.0] * width
        for choice, expert in row.lanes:
            lanes[choice] = expert
            chosen[choice] = weight_of(job, row, choice)
        result.ids[place], result.weights[place] = lanes, chosen
    result.received = picked if job.layout == "token_major" else sent
    return result


def weight_of(job: Job, row: Row, choice: int) -> float:
    return 1.0 if job.weights is None else float(job.weights[row.source][row.token][choice])


def summed(job: Job, source: int, token: int, shares: list[Row], has_weights: bool) -> Array:
    total = np.zeros(job.x[source].shape[1], np.float32)
    for row in shares:
        bits = job.x[source][token]
        value = from_fp8(*to_fp8(bits)) if job.is_fp8 else wide(bits)
        if has_weights:
            factor = np.float32(0)
            for choice, _ in row.lanes:
                factor = np.float32(factor + np.float32(weight_of(job, row, choice)))
            value = value * factor
        total = total + wide(rounded(value))
    return rounded(total)


def wide(bits: Array) -> NDArray[np.float32]:
    """bf16 as f32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounded(values: NDArray[np.float32]) -> Array:
    """f32 to the bits of bf16: half of the last place is added, less one unit if it is even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    is_odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + is_odd) >> np.uint32(16)).astype(np.uint16)


def to_fp8(bits: Array) -> tuple[Array, NDArray[np.float32]]:
    """The codes of one row, and a scale for each 128."""
    codes: list[Array] = []
    scales: list[np.float32] = []
    for start in range(0, len(bits), 128):
        block = wide(bits[start : start + 128])
        most = max(np.float32(1e-4), *np.abs(block))
        factor = np.float32(np.float32(448) / most)
        codes.append(nearest_codes(block * factor))
        scales.append(np.float32(most / np.float32(448)))
    return np.concatenate(codes), np.array(scales, np.float32)


def from_fp8(codes: Array, scales: NDArray[np.float32]) -> NDArray[np.float32]:
    values = values_of_codes()[codes & 0x7F].astype(np.float32)
    values = np.where(codes & 0x80, -values, values)
    return values * np.repeat(scales, 128)


def nearest_codes(values: NDArray[np.float32]) -> Array:
    """Of all values that E4M3 has, the nearest; of two as near, that with the even code."""
    table = values_of_codes()
    sizes = np.abs(values.astype(np.float64))
    above = np.searchsorted(table, sizes).clip(1, len(table) - 1)
    below = above - 1
    up, down = table[above] - sizes, sizes - table[below]
    is_up = (up < down) | ((up == down) & (above % 2 == 0))
    codes = np.where(is_up, above, below)
    return (codes + np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


@cache
def values_of_codes() -> NDArray[np.float64]:
    """0 to 448, by code."""
    values = []
    for code in range(0x7F):
        exponent, mantissa = divmod(code, 8)
        power = max(exponent, 1) - 7
        values.append((mantissa / 8 + (1 if exponent else 0)) * 2.0**power)
    return np.array(values)
