"""The numpy meanings of the kernels in this folder."""

from __future__ import annotations

from typing import Any

import numpy as np


def agree(key: Any, agreed: Any) -> None:
    agreed[:] = ~key


def look(key: Any, agreed: Any, status: Any) -> None:
    if agreed[0] != ~key[0]:
        status[:2] = 1, key[0]


def give(x: Any, agreed: Any, y: Any, rank: int) -> None:
    for to, rows in enumerate(y):
        rows[rank] = x * np.float32(to + 1) + np.float32(~agreed[0])


def add(x: Any, y: Any) -> None:
    y[:] = x + np.float32(1)


def fetch(x: Any, y: Any, rank: int) -> None:
    total = np.zeros_like(y)
    for rows in x:
        total = total + rows[rank]
    y[:] = total
