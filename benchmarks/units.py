"""The peer layer on two GPUs as one graph and as a graph a device, in alternating rounds.

    python benchmarks/units.py wall    --out rows.jsonl     replays and launches
    python benchmarks/units.py wall    --one-gpu ...        the same without a second GPU
    python benchmarks/units.py replays --out rows.jsonl     50,000 replays that feed each other

With ``--one-gpu`` both units are on one GPU, which a user is refused: they may come to wait for
each other for ever (memory nodes do, and so does ``host_copy``). Where they do not, it shows what
signals and awaits cost beside the products, without a link: use it with ``--expert-blocks 66``. Of
``replays`` only joined ones mean something there: counts are of a GPU, and free units share one.

Every candidate must leave the bits of one graph in one piece before it is timed. A row of ``wall``
is one candidate in one round: ``us`` is the median of some replays, each between two events on the
caller's stream (joined launches alone have one); ``back_us`` is the time of a replay when many are
launched one behind the other; ``launch_us`` is the host's time in ``graph.launch()`` while the GPUs
are idle. ``replays`` runs the small layer, whose output is its next input, with many counts, beside
one graph in one piece, and compares all bits now and then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_layer import SPEC, Candidate, Inputs, bits, candidate, ready

import graphc
from graphc.backends.cuda import CudaGraph, session
from graphc.gpu.probe import doctor_facts
from graphc.inputs import random_inputs

ROUTES = ("host", "host_copy", "host_push", "p2p", "p2p_read", "p2p_write")
FEW = ((8, 2), (64, 2))  # pieces, pieces of compute
MORE = ((8, 2), (16, 2), (32, 2), (64, 2))
DIVISIONS: dict[str, dict[str, Any]] = {
    "one graph": {},
    "flags": {"units": "device"},
    "flags, free": {"units": "device", "launch": "free"},
    "memops": {"units": "device", "sync": "memops"},
}


def candidates(
    routes: list[str], divisions: list[str], blocks: dict[str, int]
) -> Iterator[tuple[Candidate, str]]:
    for route in routes:
        for pieces, compute in MORE if route in ("host_copy", "p2p_write") else FEW:
            common = {"route": route, "pieces": pieces, "compute": compute, **blocks}
            for name in divisions:
                yield candidate(**common, **DIVISIONS[name]), name


def wall_rows(
    routes: list[str],
    divisions: list[str],
    blocks: dict[str, int],
    *,
    preset: str,
    rounds: int,
    replays: int,
) -> Iterator[dict[str, Any]]:
    """Route by route and cut by cut, so that few graphs are held at a time."""
    inputs = Inputs(0.0)
    first = ready(candidate(route=routes[0], pieces=1, compute=1), preset, inputs)
    expected = bits(first)
    first.close()
    groups: dict[tuple[Any, ...], list[tuple[Candidate, str]]] = {}
    known = 3 + len(blocks)  # what all candidates of a group have in common
    for each, name in candidates(routes, divisions, blocks):
        groups.setdefault(each.values[:known], []).append((each, name))
    for group in groups.values():
        graphs = {}
        for each, name in group:
            graphs[name] = ready(each, preset, inputs)
            if not torch.equal(bits(graphs[name]), expected):
                raise SystemExit(f"{each.label}: other bits than one graph in one piece")
        order = random.Random(1)
        values = dict(group[0][0].values[:known])
        for number in range(rounds):
            for name in order.sample(list(graphs), len(graphs)):
                row = {"round": number, "division": name, **values, "replays": replays}
                yield {**row, **times(graphs[name], replays), **launch_time(graphs[name])}
        for graph in graphs.values():
            graph.close()


def times(graph: CudaGraph, replays: int) -> dict[str, float]:
    found = {}
    if not graph._executable.is_free:
        found["us"] = statistics.median(graph.time_replays(replays))
    graph.launch()
    graph.synchronize()
    start = time.perf_counter_ns()
    for _ in range(replays):
        graph.launch()
    graph.synchronize()
    found["back_us"] = (time.perf_counter_ns() - start) / 1e3 / replays
    return found


def launch_time(graph: CudaGraph, launches: int = 15) -> dict[str, float]:
    spent = []
    for _ in range(launches):
        graph.synchronize()
        start = time.perf_counter_ns()
        graph.launch()
        spent.append((time.perf_counter_ns() - start) / 1e3)
    graph.synchronize()
    return {"launch_us": statistics.median(spent)}


def replay_rows(route: str, division: str, number: int, every: int) -> Iterator[dict[str, Any]]:
    values: dict[str, Any] = {"preset": "small", "route": route}
    plans = [
        graphc.compile(SPEC, pieces=8, compute=2, **values, **DIVISIONS[division]),
        graphc.compile(SPEC, pieces=1, compute=1, **values),
    ]
    graphs = [plan.instantiate("cuda") for plan in plans]
    tokens = int(plans[0].params["tokens"])
    chosen = np.random.default_rng(1)
    start = time.perf_counter()
    compared = 0
    for begin in range(0, number, every):
        inputs = random_inputs(plans[0], seed=begin)
        counts = [int(each) for each in chosen.integers(0, tokens + 1, every // 50)]
        for graph in graphs:
            if not begin:
                graph.bind(inputs)
            graph["residual"].write(inputs["residual"])
            for count in counts:
                for _ in range(50):
                    graph.launch(count=count)
        found, wanted = (graph["residual"].numpy() for graph in graphs)
        if found.tobytes() != wanted.tobytes():
            raise SystemExit(f"{route}, {division}: other bits within replays {begin}+{every}")
        compared += found.nbytes
    seconds = time.perf_counter() - start
    for graph in graphs:
        graph.close()
    yield {
        "route": route, "division": division, "replays": number, "compared_every": every,
        "compared_nbytes": compared, "seconds": round(seconds, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["wall", "replays"])
    parser.add_argument("--preset", default="full")
    parser.add_argument("--routes", default=",".join(ROUTES))
    parser.add_argument("--divisions", default=";".join(DIVISIONS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replays", type=int, default=5)
    parser.add_argument("--number", type=int, default=50_000)
    parser.add_argument("--expert-blocks", type=int, default=0, help="0: all multiprocessors")
    parser.add_argument("--one-gpu", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        session.check_apart = lambda *_: None  # type: ignore[assignment]

    machine = doctor_facts(with_rates=False)
    facts = {
        "gpu": machine.gpus[0].name,
        "gpus": 1 if options.one_gpu else len(machine.gpus),
        "driver": machine.driver,
        "nvrtc": machine.nvrtc,
        "preset": options.preset if options.what == "wall" else "small",
    }
    routes, divisions = options.routes.split(","), options.divisions.split(";")
    if options.what == "wall":
        blocks = {"expert_blocks": options.expert_blocks} if options.expert_blocks else {}
        rows = wall_rows(
            routes,
            divisions,
            blocks,
            preset=options.preset,
            rounds=options.rounds,
            replays=options.replays,
        )
    else:
        rows = (
            row
            for route in routes
            for name in divisions
            for row in replay_rows(route, name, options.number, 500)
        )
    for row in rows:
        print({name: round(v, 1) if isinstance(v, float) else v for name, v in row.items()})
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({"what": options.what, **facts, **row}) + "\n")


if __name__ == "__main__":
    main()
