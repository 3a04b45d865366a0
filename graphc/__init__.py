"""graphc: a declarative compiler that emits CUDA Graphs.

Transfers and kernels over devices are described in a YAML spec; ``compile`` turns it into a plan
whose schedule is proven free of races, ``Plan.instantiate`` into a graph to bind and launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graphc.api import check, compile, instantiate, load
    from graphc.plan import Plan
    from graphc.predict import simulate
    from graphc.sweeps.sweep import sweep
    from graphc.text.diagnostics import CompilerBug, CudaError, GraphcError, SpecError, UsageError
    from graphc.tracing import trace

HOMES = {
    "check": "graphc.api",
    "compile": "graphc.api",
    "instantiate": "graphc.api",
    "load": "graphc.api",
    "simulate": "graphc.predict",
    "sweep": "graphc.sweeps.sweep",
    "trace": "graphc.tracing",
    "Plan": "graphc.plan",
    "CompilerBug": "graphc.text.diagnostics",
    "CudaError": "graphc.text.diagnostics",
    "GraphcError": "graphc.text.diagnostics",
    "SpecError": "graphc.text.diagnostics",
    "UsageError": "graphc.text.diagnostics",
}

__all__ = [
    "CompilerBug",
    "CudaError",
    "GraphcError",
    "Plan",
    "SpecError",
    "UsageError",
    "__version__",
    "check",
    "compile",
    "instantiate",
    "load",
    "simulate",
    "sweep",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: ``graphc --help`` needs none of it."""
    if name not in HOMES:
        raise AttributeError(f"module 'graphc' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(HOMES[name]), name)
