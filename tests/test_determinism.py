"""The same spec makes the same stages and plan in every process, whatever Python's hashes are."""

from __future__ import annotations

import os
import subprocess
import sys

DUMP = """
import graphc
from graphc.draw.dump import dump_any
from graphc.plan import adapter

def observe(name, stage):
    if name != "verify":
        print(name, dump_any(stage), sep="\\n")

values = {"preset": "small", "pieces": 3, "layers": 1, "cubins": False, "arch": "sm_90a"}
for more in ({}, {"route": "host", "memory": "tight"}):
    plan = graphc.compile("moe_peer", observe=observe, **values, **more)
print(adapter().dump_json(plan).decode())
"""


def dump(seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", DUMP],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_stages_and_plans_do_not_depend_on_hashes() -> None:
    first, second = dump("1"), dump("4242")
    assert "insert_events" in first
    assert first == second
