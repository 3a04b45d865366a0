"""The kernels of NCCL's version in expert_parallel.py: what it needs besides the exchange."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_two(own, back, places, out, tokens, hidden: tl.constexpr, width: tl.constexpr):
    """``width`` columns of one token: two gathered rows, added in f32; a negative place is none."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = part * width + tl.arange(0, width)
    first = tl.load(places + token).to(tl.int64)
    second = tl.load(places + tokens + token).to(tl.int64)
    is_one, is_two = (columns < hidden) & (first >= 0), (columns < hidden) & (second >= 0)
    one = tl.load(own + first * hidden + columns, mask=is_one, other=0.0).to(tl.float32)
    two = tl.load(back + second * hidden + columns, mask=is_two, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + columns, (one + two).to(tl.bfloat16), mask=columns < hidden)


@triton.jit
def quantise(x, y, scales, blocks: tl.constexpr, rounded: tl.constexpr):
    """One token, with a scale for each 128; ``rounded`` is a power of two from ``blocks`` on."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, rounded)
    at = token * blocks * 128 + block[:, None] * 128 + tl.arange(0, 128)[None, :]
    is_block = block[:, None] < blocks
    value = tl.load(x + at, mask=is_block, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(value), axis=1), 1e-4)
    tl.store(scales + token * blocks + block, most / 448.0, mask=block < blocks)
    tl.store(y + at, (value * (448.0 / most)[:, None]).to(tl.float8e4nv), mask=is_block)
