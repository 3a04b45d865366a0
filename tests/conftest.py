"""Options and fixtures that several rooms' tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings

# dev: while writing; ci: what `make test` runs; night: before a release.
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=SLOW)
settings.register_profile(
    "ci", max_examples=200, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.register_profile("night", max_examples=20_000, deadline=None, suppress_health_check=SLOW)
settings.register_profile(
    "mutants",
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=SLOW,
    phases=[Phase.generate],  # that a test fails is enough: do not look for a small case
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected part of golden files instead of comparing with it",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
