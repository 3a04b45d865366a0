"""Tests on real GPUs: all are marked ``gpu`` and skipped where there is none."""

from __future__ import annotations

import pytest

from graphc.gpu.probe import gpu_count


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = None if gpu_count() else pytest.mark.skip(reason="no GPU")
    for item in items:
        if "tests/gpu" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if skip is not None:
                item.add_marker(skip)
