"""Sweeps on a GPU: a kernel that touches memory that is not there, or does not end, fails alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphc

TEMPLATE = """{#
graphc_kernel: 1
name: faulty
doc: y = x; or told 1 it touches memory that is not there, 2 it takes 20 seconds, 3 it is wrong.
axis: n
symbols: [n, m]
args:
  x: {dtype: f32, shape: [n, m], access: read, rows: split}
  y: {dtype: f32, shape: [n, m], access: write, rows: split}
scalars: {fault: i32}
launch: {grid: ["1"], block: [256]}
exact: true
cost: {flops: "0", bytes: "8 * (hi - lo) * m"}
reference: faulty:faulty
#}
extern "C" __global__ void __launch_bounds__(256) {{ entry }}({{ params }}) {
  {{ bounds }}
  for (long long i = lo * {{ m }} + threadIdx.x; i < hi * {{ m }}; i += 256)
    y[i] = x[i] + (fault == 3 ? 1.0f : 0.0f);
  if (fault == 1) *reinterpret_cast<volatile int*>(16) = 1;
  if (fault == 2)
    for (int each = 0; each < 20000; ++each)
      for (int part = 0; part < 1000; ++part) __nanosleep(1000);
}
"""
SPEC = """
graphc: 1
name: faults
params: {fault: {default: 0}, pieces: {default: 1, min: 1}}
devices: [gpu]
buffers:
  x: {device: gpu, dtype: f32, shape: [64, 16], role: input}
  y: {device: gpu, dtype: f32, shape: [64, 16], role: output}
ops:
  - {name: act, kernel: faulty, device: gpu, args: {x: x, y: y}, scalars: {fault: fault}}
schedule:
  act: {pieces: pieces}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "faulty.cu.j2").write_text(TEMPLATE)
    (tmp_path / "kernels" / "faulty.py").write_text(
        "def faulty(*, x, y, fault, lo, hi, **rest):\n    y[lo:hi] = x[lo:hi] + (fault == 3)\n"
    )
    (tmp_path / "faults.yaml").write_text(SPEC)
    return tmp_path


def test_faults_and_hangs_of_kernels_fail_alone(folder: Path) -> None:
    found = graphc.sweep(
        folder / "faults.yaml",
        {"pieces": [1, 2], "fault": [0, 1, 3, 2]},
        kernels=folder / "kernels",
        out=folder / "out",
        limit_s=6.0,
    )
    status = {row.candidate.label: row.outcome.status.value for row in found.rows}
    assert status == {
        "pieces=1 fault=0": "ok", "pieces=1 fault=1": "failed",
        "pieces=1 fault=3": "different", "pieces=1 fault=2": "failed",
        "pieces=2 fault=0": "ok", "pieces=2 fault=1": "failed",
        "pieces=2 fault=3": "different", "pieces=2 fault=2": "failed",
    }  # fmt: skip
    reasons = {row.candidate.label: str(row.outcome.reason) for row in found.rows}
    assert "ILLEGAL_ADDRESS" in reasons["pieces=1 fault=1"]
    assert reasons["pieces=1 fault=2"] == "it took longer than 6 s"
    assert found.best is not None
    assert found.best.candidate.values["fault"] == 0
    assert found.best.outcome.basis == "measured"
