"""Measure a machine, and write its profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphc import api
from graphc.calibrate import specs
from graphc.calibrate.bench import CudaBench
from graphc.calibrate.fit import Fit
from graphc.calibrate.measure import Bench, Figures, measure
from graphc.kernels.contract import Catalog
from graphc.resources import kernel_folders


def calibrate(
    name: str, *, bench: Bench | None = None, kept: Callable[[Figures], None] | None = None
) -> dict[str, Any]:
    """A profile of the machine at hand, as data; ``kept`` is given the times that it rests on."""
    figures = measure(bench or CudaBench())
    if kept is not None:
        kept(figures)
    return profile_of(figures, name)


def profile_of(figures: Figures, name: str) -> dict[str, Any]:
    built, _, _ = api.read(specs.layer(), None, None, (), (), {})
    assert built.program is not None
    return Fit(figures, built.program, Catalog(kernel_folders())).profile(name)
