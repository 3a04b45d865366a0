"""What the peer layer makes of one token, said once more: choice by choice, in plain numpy.

Products are of f64, so they are those of f32 where these are exact; the weights, the rows of the
experts and all that is added are rounded where the layer rounds them. There is no shared expert.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from expert_parallel_oracle import rounded, wide
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class Experts:
    """All of them, wherever they are; ``up`` has the gates first, then the values."""

    route: Array  # [experts, hidden]
    up: Array  # [experts, 2 * ff, hidden]
    down: Array  # [experts, hidden, ff]


def activations(residual: Floats, norm_w: Floats) -> Floats:
    """What the experts are given of a token: its normalised row, in bf16."""
    values = residual.astype(np.float64)
    return bf16(values / np.sqrt(np.mean(values * values) + 1e-6) * norm_w)


def shares(x: Array, experts: Experts, top_k: int, own: Set[int]) -> tuple[Floats, Floats]:
    """The weighted sums over a token's experts that are in ``own``, and over the others."""
    row = x.astype(np.float64)
    logits = experts.route.astype(np.float64) @ row
    chosen = np.argsort(-logits, kind="stable")[:top_k]
    weights = np.exp(logits[chosen] - logits.max())
    weights = (weights / weights.sum()).astype(np.float32)
    here, there = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for expert, weight in zip(chosen.tolist(), weights, strict=True):
        gate, value = np.split(experts.up[expert].astype(np.float64) @ row, 2)
        middle = bf16(gate / (1 + np.exp(-gate)) * value).astype(np.float64)
        result = bf16(experts.down[expert].astype(np.float64) @ middle)
        total = here if expert in own else there
        total += weight * result
    return here, there


def bf16(values: Array) -> Floats:
    """Rounded to bf16, as f32."""
    return wide(rounded(values.astype(np.float32)))
