"""One small spec on both backends: rows go to the other device and back, and are counted.

There is no kernel in it, so the fake driver does all that it asks.
"""

from __future__ import annotations

from typing import Any

from fakes import RecordingDriver

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.backends.reference import ReferenceGraph
from graphc.plan import Plan

ECHO = """
graphc: 1
name: echo
params: {tokens: {default: 10, min: 0, count: true}, pieces: {default: 3, min: 1}}
devices: [primary, peer]
buffers:
  x: {device: primary, dtype: f32, shape: [tokens, 8], role: input}
  y: {device: primary, dtype: f32, shape: [tokens, 8], role: output}
  far: {device: peer, dtype: f32, shape: [tokens, 8]}
ops:
  - {name: over, transfer: {source: x, target: far, wire: f32}}
  - {name: back, transfer: {source: far, target: y, wire: f32}}
schedule:
  over: {route: host_copy, pieces: pieces}
  back: {route: host_copy, pieces: pieces}
"""
BACKENDS = ("cuda", "reference")


def echo(folder: Any, **values: Any) -> Plan:
    path = folder / "echo.yaml"
    path.write_text(ECHO)
    return graphc.compile(path, cubins=False, arch="sm_90a", **values)


def opened(backend: str, plan: Plan, **options: Any) -> Any:
    if backend == "cuda":
        return CudaGraph(plan, driver=RecordingDriver(), **options)
    return ReferenceGraph(plan, **options)
