"""A small spec to sweep, evaluators that do as they are told, and functions of extern ops."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphc.sweeps.job import Job
from graphc.sweeps.rows import Basis, Outcome, Status
from graphc.text.diagnostics import CudaError, UsageError

HERE = Path(__file__).parent
OFFLOAD = HERE.parent.parent / "examples" / "offload.yaml"
MACHINE = "h200x2"

EXTERN = """
graphc: 1
name: outside
params: {how: {default: well}, bits: {default: 1.0}, pieces: {default: 1, min: 1}}
devices: [gpu]
buffers:
  x: {device: gpu, dtype: f32, shape: [8, 4], role: inout}
  y: {device: gpu, dtype: f32, shape: [8, 4]}
ops:
  - {name: copy, kernel: convert, device: gpu, args: {x: x, y: y}}
  - name: act
    device: gpu
    extern:
      function: sweep_cases:act
      reference: sweep_cases:act
      args: {y: {buffer: y, access: read}, x: {buffer: x, access: update}}
      scalars: {how: =how, bits: =bits}
schedule:
  copy: {pieces: pieces}
"""


def extern_spec(folder: Path) -> Path:
    path = folder / "outside.yaml"
    path.write_text(EXTERN)
    return path


def act(*, how: str, bits: float, y: Any, x: Any, **rest: Any) -> None:
    """The body of an extern op on the reference."""
    if how == "exit":
        print("the op was told to exit", flush=True)
        os._exit(9)
    if how == "hang":
        time.sleep(60)
    if how == "raise":
        raise ValueError("the op was told to raise")
    x += np.float32(bits) * y


class Scripted:
    """An evaluator: a formula for the time, and faults where a candidate asks for them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_broken = False
        if job.settings.get("no_baseline") == "exit":
            os._exit(5)
        if job.settings.get("no_baseline") == "raise":
            raise CudaError("cuInit", "CUDA_ERROR_NO_DEVICE", "told so")
        self.baseline = Outcome(Status.OK, Basis.PREDICTED, us=100.0, relative=1.0)

    def evaluate(self, values: Mapping[str, Any]) -> Outcome:
        time.sleep(float(self.job.settings.get("slow_s", 0)))
        if log := self.job.settings.get("log"):
            with open(log, "a") as file:
                file.write(f"{values}\n")
        match values.get("how", "well"):
            case "exit":
                os._exit(9)
            case "hang":
                time.sleep(60)
            case "fault":
                self.is_broken = True
                raise CudaError("cuLaunch", "CUDA_ERROR_ILLEGAL_ADDRESS", "told so", op="act")
            case "usage":
                raise UsageError("told so")
        us = 50.0 + (float(values["pieces"]) - 11) ** 2
        return Outcome(Status.OK, Basis.PREDICTED, us=us, relative=us / 100, params=dict(values))

    def is_sound(self) -> bool:
        return not self.is_broken

    def close(self) -> None:
        """Nothing is held."""
