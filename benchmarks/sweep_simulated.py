"""Simulated sweeps of the peer layer: candidates a second, and memory, by their number.

    python benchmarks/sweep_simulated.py --out rows.jsonl

Each sweep is a new process, its start included, over three routes and every number of pieces that
makes so many candidates; nothing is kept from one to the next. The memory is the most that the
process and its workers hold together, looked at often.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from compile_time import processor

HERE = Path(__file__).parent
SPEC = HERE.parent / "specs" / "moe_peer.yaml"
MACHINE = HERE.parent / "specs" / "machines" / "h200x2.yaml"
SIZES = (96, 192, 384, 768, 1536)
MOST_PIECES = 64
LOOK_S = 0.05


def command(candidates: int, out: str, workers: int) -> list[str]:
    """Three routes times pieces 1 to 64, in even steps; more by the peer's share of experts."""
    pieces = min(candidates // 3, MOST_PIECES)
    shares = candidates // 3 // pieces
    axes = {
        "route": "host,host_push,p2p",
        "pieces": f"1:{MOST_PIECES}:{MOST_PIECES // pieces}",
        "peer_experts": ",".join(str(128 + 16 * each) for each in range(shares)),
    }
    words = [word for name, values in axes.items() for word in ("--axis", f"{name}={values}")]
    return [
        sys.executable, "-m", "graphc", "sweep", str(SPEC), "--simulate", str(MACHINE), *words,
        "--out", out, "--workers", str(workers), "--json",
    ]  # fmt: skip


def measured(candidates: int, workers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryFile() as said:
        before, start = os.times(), time.perf_counter()
        running = subprocess.Popen(command(candidates, out, workers), stdout=said)
        most = 0
        while running.poll() is None:
            most = max(most, nbytes_of(running.pid))
            time.sleep(LOOK_S)
        seconds, after = time.perf_counter() - start, os.times()
        said.seek(0)
        found = json.load(said)
    rows = found["candidates"]
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    return {
        "candidates": len(rows),
        "workers": workers,
        "seconds": seconds,
        "a_second": len(rows) / seconds,
        "cpu_ms_a_candidate": cpu_s * 1e3 / len(rows),
        "ops": sum(each["ops"] for each in rows) / len(rows),
        "peak_bytes": most,
        "not_ok": sum(each["status"] != "ok" for each in rows),
        "load": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
    }


def nbytes_of(process: int) -> int:
    """What a process and its children have in memory."""
    pages = 0
    for each in (process, *children(process)):
        try:
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
        except (OSError, IndexError):  # it has ended
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def children(process: int) -> list[int]:
    try:
        return [
            int(each)
            for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    except OSError:
        return []


def line_of(row: dict[str, Any]) -> str:
    return (
        f"{row['candidates']:6} candidates of {row['ops']:4.0f} ops: {row['seconds']:6.1f} s, "
        f"{row['a_second']:5.1f} a second, {row['cpu_ms_a_candidate']:5.1f} ms of processor each, "
        f"{row['peak_bytes'] / 1e6:4.0f} MB, load {row['load']:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = {"python": platform.python_version(), "processor": processor()}
    for number in range(options.rounds):
        for candidates in options.sizes:
            row = {**facts, "round": number, **measured(candidates, options.workers)}
            print(line_of(row), flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
