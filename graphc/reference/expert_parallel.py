"""Dispatch and combine of a mixture-of-experts layer over ranks, as the kernels ``ep_*`` do it.

An argument over all ranks is a tuple with the buffer of each. Rows beyond the tokens in use, and
rows that nothing was sent to, are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from graphc.reference.convert import Array, narrow, widen

Peers: TypeAlias = Sequence[Array]
BLOCK = 128  # elements that share a scale
LARGEST = np.float32(448)  # of E4M3
LEAST = np.float32(1e-4)  # what a block is scaled as if it had, if it has nothing larger
STALE, TOO_MANY = 1, 2  # codes of the status
PLACE = np.uint64(0x9E3779B97F4A7C15)  # what tells places apart in a hash


def count(
    *,
    topk: Array,
    tokens: Array,
    routes: Array,
    sent: Array,
    picked: Array,
    stamp: Array,
    status: Array | None,
    active: int,
) -> None:
    """Where each token goes, and how many go where."""
    ranks, local = picked.shape
    ids = topk[: in_use(tokens, active)]
    is_route = (ids >= 0) & (ids < ranks * local)
    goes = np.zeros((len(ids), ranks), bool)
    token, _ = np.nonzero(is_route)
    goes[token, ids[is_route] // local] = True
    token, rank = np.nonzero(goes)
    routes[: len(ids)] = -1
    entry = (np.cumsum(goes, axis=1) - 1)[token, rank]
    offset = (np.cumsum(goes, axis=0) - 1)[token, rank]
    routes[token, entry] = np.stack([rank, offset], axis=1)
    sent[:] = goes.sum(axis=0)
    picked[:] = np.bincount(ids[is_route], minlength=ranks * local).reshape(ranks, local)
    stamp[0] = stamp_of(ids)
    if status is not None and tokens[0] > active:
        status[0] = TOO_MANY


def in_use(tokens: Array, active: int) -> int:
    return min(max(int(tokens[0]), 0), active)


def stamp_of(ids: Array) -> np.uint64:
    """A hash of the ids, by place, and of the number of tokens; of none, too, it is not 0.

    >>> int(stamp_of(np.array([[3, 4]]))) == int(stamp_of(np.array([[4, 3]])))
    False
    """
    values = ids.reshape(-1).astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        shares = mix(values + np.arange(1, len(values) + 1, dtype=np.uint64) * PLACE)
        total = shares.sum(dtype=np.uint64) + np.uint64(len(ids) + 1) * PLACE
        return np.uint64(mix(np.array([total], np.uint64))[0])


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


def exchange(*, sent: Array, picked: Array, counts: Peers, rank: int) -> None:
    """Row ``rank`` of every rank's counts."""
    for each, own in zip(counts, picked, strict=True):
        each[rank] = np.concatenate([sent, own])


def scan(
    *,
    counts: Array,
    offsets: Array,
    spans: Array,
    received: Array,
    layout: str,
    rank: int,
    stride: int,
) -> None:
    """Where this rank's rows begin on others, which of its own rows came from whom, and counts."""
    ranks = len(offsets)
    sent = counts[:, :ranks]
    is_dense = layout == "token_major"
    before = np.cumsum(sent, axis=0) - sent
    offsets[:] = before[rank] if is_dense else rank * stride
    spans[:, 0] = before[:, rank] if is_dense else np.arange(ranks) * stride
    spans[:, 1] = sent[:, rank]
    received[:] = counts[:, ranks:].sum(axis=0) if is_dense else sent[:, rank]


def fresh(
    *,
    topk: Array,
    tokens: Array,
    stamp: Array,
    status: Array,
    faults: Peers,
    rank: int,
    active: int,
) -> None:
    """Whether the preparation was made of this routing."""
    is_stale = stamp[0] != stamp_of(topk[: in_use(tokens, active)])
    if is_stale or tokens[0] > active:
        status[0] = STALE if is_stale else TOO_MANY
    for each in faults:
        each[rank] = is_stale


def quantise(*, x: Array, tokens: Array, y: Array, s: Array, active: int, lo: int, hi: int) -> None:
    """bf16 to E4M3 with a scale for each block."""
    rows = slice(lo, max(lo, min(hi, in_use(tokens, active))))
    y[rows], s[rows] = quantised(x[rows])


def quantised(rows: Array) -> tuple[Array, NDArray[np.float32]]:
    """With m = max(|x|, 1e-4), NaN left out: scale m / 448, values e4m3(x * (448 / m)), in f32.

    >>> values, scales = quantised(np.full((1, 128), 3, ml_dtypes.bfloat16))
    >>> float(values[0, 0]), float(scales[0, 0] * 448)
    (448.0, 3.0)
    """
    blocks = widen(rows).reshape(len(rows), rows.shape[1] // BLOCK, BLOCK)
    with np.errstate(invalid="ignore", over="ignore"):
        most = np.fmax(np.fmax.reduce(np.abs(blocks), axis=2, initial=LEAST), LEAST)
        scaled = blocks * (LARGEST / most)[:, :, None]
        values = np.clip(scaled, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
        scales = most / LARGEST
    values.view(np.uint8)[np.isnan(scaled)] = 0x7F
    return values.reshape(rows.shape), scales


def dispatch(
    *,
    x: Array,
    s: Array | None,
    routes: Array,
    offsets: Array,
    topk: Array,
    topk_w: Array | None,
    tokens: Array,
    fault: Array | None,
    y: Peers,
    ys: Peers | None,
    ids: Peers | None,
    w: Peers | None,
    rank: int,
    active: int,
    local: int,
    lo: int,
    hi: int,
) -> None:
    """Each token's row to its row on every rank that it goes to, and what belongs to it."""
    if fault is not None and fault[rank] != 0:
        return
    limit = min(hi, in_use(tokens, active))
    for target, token, row in destinations(routes, offsets, lo, limit, rows=len(y[0])):
        y[target][row] = x[token]
        if ys is not None and s is not None:
            ys[target][row] = s[token]
        expert = topk[token] - target * local
        is_local = (expert >= 0) & (expert < local)
        if ids is not None:
            ids[target][row] = np.where(is_local, expert, -1)
        if w is not None:
            weights = np.float32(1) if topk_w is None else topk_w[token]
            w[target][row] = np.where(is_local, weights, np.float32(0))


def dispatch_quant(
    *,
    x: Array,
    routes: Array,
    offsets: Array,
    topk: Array,
    topk_w: Array | None,
    tokens: Array,
    fault: Array | None,
    y: Peers,
    ys: Peers,
    ids: Peers | None,
    w: Peers | None,
    rank: int,
    active: int,
    local: int,
    lo: int,
    hi: int,
) -> None:
    """``quantise``, then ``dispatch``."""
    values = np.zeros(x.shape, ml_dtypes.float8_e4m3fn)
    scales = np.zeros((len(x), x.shape[1] // BLOCK), np.float32)
    quantise(x=x, tokens=tokens, y=values, s=scales, active=active, lo=lo, hi=hi)
    dispatch(
        x=values,
        s=scales,
        routes=routes,
        offsets=offsets,
        topk=topk,
        topk_w=topk_w,
        tokens=tokens,
        fault=fault,
        y=y,
        ys=ys,
        ids=ids,
        w=w,
        rank=rank,
        active=active,
        local=local,
        lo=lo,
        hi=hi,
    )


def destinations(
    routes: Array, offsets: Array, lo: int, hi: int, *, rows: int
) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
    """For each rank, in ascending order: tokens that go there, and their rows.

    A token's entries end where the first one is none, or would lie outside of the buffers.
    """
    if hi <= lo:
        return
    entries = routes[lo:hi].astype(np.int64)
    rank, offset = entries[:, :, 0], entries[:, :, 1]
    is_rank = (rank >= 0) & (rank < len(offsets))
    row = offsets[np.where(is_rank, rank, 0)] + offset
    is_entry = np.logical_and.accumulate(is_rank & (row >= 0) & (row < rows), axis=1)
    for each in range(len(offsets)):
        token, entry = np.nonzero(is_entry & (rank == each))
        if len(token):
            yield each, lo + token, row[token, entry]


def received_ids(*, ids: Array, spans: Array, y: Array) -> None:
    """The ids of the rows that were received; -1 elsewhere."""
    y[:] = -1
    for start, number in spans.tolist():
        y[start : start + number] = ids[start : start + number]


def identity(
    *,
    x: Array,
    s: Array | None,
    w: Array | None,
    spans: Array,
    faults: Array | None,
    agreed: Array | None,
    y: Array,
) -> None:
    """Every row that was received, times its scales, times the sum of its weights."""
    is_fault = faults is not None and bool((faults != 0).any())
    if agreed is not None:
        agreed[0] = is_fault
    if is_fault:
        return
    for start, number in spans.tolist():
        rows = slice(start, start + number)
        with np.errstate(invalid="ignore", over="ignore"):
            value = widen(x[rows])
            if s is not None:
                value = value * np.repeat(s[rows], BLOCK, axis=1)
            if w is not None:
                value = value * sum_of(w[rows])[:, None]
        y[rows] = narrow(value, y.dtype)


def sum_of(weights: Array) -> NDArray[np.float32]:
    """By row, from 0, in the order of the columns."""
    total = np.zeros(len(weights), np.float32)
    for column in weights.T:
        total = total + column
    return total


def identity_in_place(
    *,
    w: Array | None,
    spans: Array,
    faults: Array | None,
    agreed: Array | None,
    y: Array,
) -> None:
    """``identity`` of rows that stay where they are."""
    identity(x=y, s=None, w=w, spans=spans, faults=faults, agreed=agreed, y=y)


def combine(
    *,
    y: Peers,
    routes: Array,
    offsets: Array,
    tokens: Array,
    fault: Array | None,
    out: Array,
    active: int,
    lo: int,
    hi: int,
) -> None:
    """The sum of the ranks' shares of each token, from 0, in ascending order of ranks."""
    if fault is not None and fault.any():
        return
    limit = min(hi, in_use(tokens, active))
    if limit <= lo:
        return
    total = np.zeros((limit - lo, out.shape[1]), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for rank, token, row in destinations(routes, offsets, lo, limit, rows=len(y[0])):
            total[token - lo] += widen(y[rank][row])
    out[lo:limit] = narrow(total, out.dtype)
