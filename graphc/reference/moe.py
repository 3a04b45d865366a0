"""The parts of a mixture-of-experts layer around its matrix products.

All arithmetic is f32 in the order in which the kernels do it, so what they call exact is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphc.reference.convert import Array, narrow, widen

PARTIAL_SUMS, GROUP, WARP = 256, 4, 32  # the order of rms_mix's sum
LEAST_SHARE = 2.0**-14  # of the chosen experts together, in the router


def rms_mix(
    *, x: Array, w: Array, mixed: Array | None, mixed_h: Array | None, lo: int, hi: int
) -> None:
    """``mixed = x / sqrt(mean(x * x) + 1e-6) * w``; ``mixed_h`` the same in 16 bits."""
    rows = x[lo:hi]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sum_of_squares(rows) / np.float32(max(x.shape[1], 1))
        scale = np.float32(1) / np.sqrt(mean + np.float32(1e-6))
        result = rows * scale[:, None] * widen(w)
    if mixed is not None:
        mixed[lo:hi] = result
    if mixed_h is not None:
        mixed_h[lo:hi] = narrow(result, mixed_h.dtype)


def sum_of_squares(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """By row: partial sums over every 256th group of 4, by halves of 32, then the 8 in order."""
    width = PARTIAL_SUMS * GROUP
    padded = np.zeros((len(rows), -(-rows.shape[1] // width) * width), np.float32)
    padded[:, : rows.shape[1]] = rows
    groups = padded.reshape(len(rows), padded.shape[1] // width, PARTIAL_SUMS, GROUP)
    partial = np.zeros((len(rows), PARTIAL_SUMS), np.float32)
    for i in range(groups.shape[1]):
        for v in range(GROUP):
            partial = partial + groups[:, i, :, v] * groups[:, i, :, v]
    lanes = partial.reshape(len(rows), PARTIAL_SUMS // WARP, WARP)
    for step in (16, 8, 4, 2, 1):
        lanes = lanes + lanes[:, :, np.arange(WARP) ^ step]
    total: NDArray[np.float32] = lanes[:, 0, 0]
    for i in range(1, PARTIAL_SUMS // WARP):
        total = total + lanes[:, i, 0]
    return total


def router(
    *, logits: Array, ids: Array, weight: Array, experts: int, top_k: int, lo: int, hi: int
) -> None:
    """The best ``top_k`` logits of each token, ties to the lower id, and their softmax shares."""
    if top_k > experts:
        raise ValueError(f"cannot choose {top_k} of {experts} experts")
    known = logits[lo:hi].astype(np.float64)
    known = np.where(np.isnan(known), -np.inf, np.minimum(known, np.finfo(np.float32).max))
    chosen = np.argsort(-known, axis=1, kind="stable")[:, :top_k]
    highest = known.max(axis=1, keepdims=True)
    shifted = np.subtract(known, highest, out=np.full_like(known, -np.inf), where=highest > -np.inf)
    shares = np.exp(shifted)
    total = shares.sum(axis=1, keepdims=True)
    shares = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
    best = np.take_along_axis(shares, chosen, axis=1)
    ids[lo:hi] = chosen
    weight[lo:hi] = best / np.maximum(best.sum(axis=1, keepdims=True), LEAST_SHARE)


def group_rows(
    *,
    ids: Array,
    offsets: Array,
    src: Array,
    slot: Array,
    first: int,
    ends: int,
    top_k: int,
    lo: int,
    hi: int,
    piece: int,
) -> None:
    """Rows by expert, and by token within an expert, for the experts ``first, first + 1, ...``."""
    experts = ends - 1
    base = lo * top_k
    expert = ids[lo:hi].reshape(-1).astype(np.int64) - first
    pairs = np.flatnonzero((expert >= 0) & (expert < experts))
    order = pairs[np.argsort(expert[pairs], kind="stable")]
    rows = base + np.arange(len(order))
    counts = np.bincount(expert[order], minlength=experts)
    offsets[piece] = base + np.concatenate([[0], np.cumsum(counts)])
    src.reshape(-1)[base : base + len(order)] = lo + order // top_k
    slots = slot.reshape(-1)
    slots[base : hi * top_k] = -1
    slots[base + order] = rows


def weighted_sums(*, rows: Array, slot: Array, weight: Array, sum: Array, lo: int, hi: int) -> None:
    """Each token's rows times their weights, added from 0 in the order of k."""
    sum[lo:hi] = narrow(weighted_rows(rows, slot, weight, lo, hi), sum.dtype)


def moe_combine(
    *,
    rows: Array,
    slot: Array,
    weight: Array,
    shared: Array | None,
    out: Array,
    lo: int,
    hi: int,
) -> None:
    """``out = (weighted rows + out) + shared``."""
    with np.errstate(over="ignore", invalid="ignore"):
        result = weighted_rows(rows, slot, weight, lo, hi) + out[lo:hi]
        if shared is not None:
            result = result + widen(shared[lo:hi])
    out[lo:hi] = result


def weighted_rows(rows: Array, slot: Array, weight: Array, lo: int, hi: int) -> NDArray[np.float32]:
    """Products and sums are rounded one by one; a negative slot adds nothing, not even zero."""
    flat = rows.reshape(-1, rows.shape[-1])
    total = np.zeros((hi - lo, rows.shape[-1]), np.float32)
    for k in range(slot.shape[1]):
        slots = slot[lo:hi, k]
        tokens = np.flatnonzero(slots >= 0)
        with np.errstate(over="ignore", invalid="ignore"):
            total[tokens] += weight[lo + tokens, k, None] * widen(flat[slots[tokens]])
    return total


def residual_add(*, x: Array, y: Array, lo: int, hi: int) -> None:
    """``x += y``."""
    with np.errstate(over="ignore", invalid="ignore"):
        x[lo:hi] = x[lo:hi] + widen(y[lo:hi])
