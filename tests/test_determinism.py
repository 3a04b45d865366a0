"""The same spec prints the same stages in every process, whatever Python's hashes are."""

from __future__ import annotations

import os
import subprocess
import sys

DUMP = """
import graphc
from graphc.draw.dump import dump_any

def observe(name, stage):
    if name != "verify":
        print(name, dump_any(stage), sep="\\n")

values = {"preset": "small", "pieces": 3, "layers": 1}
for spec, more in (("moe_peer", {}), ("moe_peer", {"route": "host", "memory": "tight"})):
    plan = graphc.compile(spec, observe=observe, cubins=False, arch="sm_90a", **values, **more)
    print(*(f"{key} {len(image.source)}" for key, image in plan.images.items()), sep="\\n")
"""
COMPILE = ("compile", "moe_peer", "--preset", "small", "--no-cubins", "--arch", "sm_90a")


def dump(seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", DUMP],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_stages_and_kernels_do_not_depend_on_hashes() -> None:
    first, second = dump("1"), dump("4242")
    assert "insert_events" in first
    assert first == second


def test_a_saved_plan_does_not_depend_on_hashes(tmp_path: object) -> None:
    saved = []
    for seed in ("7", "8"):
        path = f"{tmp_path}/{seed}.graphc"
        subprocess.run(
            [sys.executable, "-m", "graphc", *COMPILE, "-o", path],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        with open(path, "rb") as file:
            saved.append(file.read())
    assert saved[0] == saved[1]
