"""The peer layer on two GPUs: whole-layer time by route and pieces, in alternating rounds.

    python benchmarks/peer_layer.py pieces  --out rows.jsonl     (a) by route and pieces
    python benchmarks/peer_layer.py share   --out rows.jsonl     (b) by the peer's share of experts
    python benchmarks/peer_layer.py skew    --out rows.jsonl     (c) with a skewed routing
    python benchmarks/peer_layer.py launch  --out rows.jsonl     (d) host time of a launch

Every candidate runs once on the same inputs first and must leave the bits of the first candidate.
Then, in every round, each is replayed in an order drawn anew; a row is one candidate in one round:
the median of its replays. Ratios are taken round by round. The baseline of a route is one piece;
the bound is the busiest engine in one piece with one compute stream a device, so that ops of one
engine run alone: the sum of the times of the ops of one device's multiprocessors, of one copy
engine, or of one link.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.gpu.probe import doctor_facts
from graphc.ir import Copy, Role

SPEC = Path(__file__).parent.parent / "specs" / "moe_peer.yaml"
TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32}
EVEN = ((8, 1), (16, 1), (8, 2), (32, 1), (16, 2), (32, 2), (16, 4))  # pieces, pieces of compute
UNEVEN = (("1/4", "1/2", "1/4"), ("3/8", "3/8", "1/4"))  # of compute: a short last piece pays


@dataclass(frozen=True, slots=True)
class Candidate:
    """One schedule to be measured, by the values that select it."""

    values: tuple[tuple[str, Any], ...]

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)


def candidate(**values: Any) -> Candidate:
    return Candidate(tuple(values.items()))


class Inputs:
    """Seeded device arrays by buffer name, made once and bound by every candidate."""

    def __init__(self, skew: float) -> None:
        self.skew = skew
        self.arrays: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    def bind(self, graph: CudaGraph) -> None:
        for name, buffer in graph.program.buffers.items():
            if buffer.role is Role.WEIGHT:
                graph.bind({name: self.array(graph, name)})

    def array(self, graph: CudaGraph, name: str) -> torch.Tensor:
        buffer = graph.program.buffers[name]
        key = (name, buffer.shape)
        if key not in self.arrays:
            device = f"cuda:{graph.placed[buffer.device]}"
            generator = torch.Generator(device).manual_seed(sum(name.encode()))
            value = torch.randn(buffer.shape, generator=generator, device=device)
            if len(buffer.shape) > 1 and buffer.role is Role.WEIGHT:
                value *= buffer.shape[-1] ** -0.5
            if name.endswith("w_route"):
                value *= torch.linspace(1, 1 + self.skew, len(value), device=device)[:, None]
            self.arrays[key] = value.to(TORCH[buffer.dtype]).contiguous()
        return self.arrays[key]

    def residual(self, graph: CudaGraph) -> None:
        view = torch.from_dlpack(graph["residual"])
        view.copy_(self.array(graph, "residual"))
        torch.cuda.synchronize(view.device)


def ready(each: Candidate, preset: str, inputs: Inputs) -> CudaGraph:
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in each.values}
    plan = graphc.compile(SPEC, preset=preset, **values)
    graph = plan.instantiate("cuda")
    assert isinstance(graph, CudaGraph)
    inputs.bind(graph)
    inputs.residual(graph)
    graph.launch()
    graph.synchronize()
    return graph


def bits(graph: CudaGraph) -> torch.Tensor:
    return torch.from_dlpack(graph["residual"]).view(torch.int32).clone()


def measured(
    candidates: list[Candidate], preset: str, inputs: Inputs, *, rounds: int, replays: int
) -> Iterator[dict[str, Any]]:
    """Rows of alternating rounds; raises if a candidate's bits differ from the first one's."""
    graphs = {}
    expected = None
    for each in candidates:
        graphs[each] = ready(each, preset, inputs)
        found = bits(graphs[each])
        expected = found if expected is None else expected
        if not torch.equal(found, expected):
            raise SystemExit(f"{each.label}: other bits than {candidates[0].label}")
    del expected, found
    order = random.Random(1)
    for number in range(rounds):
        for each in order.sample(candidates, len(candidates)):
            us = graphs[each].time_replays(replays)
            yield {
                "round": number,
                "schedule": each.label,
                **dict(each.values),
                "us": statistics.median(us),
                "min_us": min(us),
                "replays": replays,
            }
    for each in candidates:
        yield {"schedule": each.label, **dict(each.values), "ops": op_rows(graphs[each])}
    alone = ready(candidate(**{**dict(candidates[0].values), "max_streams": 1}), preset, inputs)
    yield {"schedule": "alone", **dict(candidates[0].values), "ops": op_rows(alone)}
    alone.close()
    for graph in graphs.values():
        graph.close()


def op_rows(graph: CudaGraph) -> list[dict[str, Any]]:
    """Each step's time on its stream and its wait before, summed over its pieces."""
    steps: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    step_of = {op.name: op for op in graph.program.ops}
    for each in graph.time_ops(5):
        steps[step_of[each.op].step][0] += each.us
        steps[step_of[each.op].step][1] += each.waited_us or 0.0
    first = {op.step: op for op in reversed(graph.program.ops)}
    return [
        {"step": step, "engine": engine(first[step]), "us": us, "waited_us": waited}
        for step, (us, waited) in steps.items()
    ]


def engine(op: Any) -> str:
    if isinstance(op.work, Copy):
        return f"{op.device} copy engine ({op.step.rsplit('/', 2)[-2]})"
    if op.placement.lane is None:
        return f"{op.device} compute"
    return f"{op.device} link kernels ({op.step.rsplit('/', 2)[-2]})"


def bound_us(ops: Iterable[dict[str, Any]]) -> tuple[str, float]:
    busy: dict[str, float] = defaultdict(float)
    for each in ops:
        busy[each["engine"]] += each["us"]
    return max(busy.items(), key=lambda item: item[1])


def table(rows: list[dict[str, Any]], candidates: list[Candidate], baselines: Baselines) -> None:
    us: dict[Candidate, dict[int, float]] = defaultdict(dict)
    ops: dict[Candidate, list[dict[str, Any]]] = {}
    named = {each.label: each for each in candidates}
    for row in rows:
        if row["schedule"] == "alone":
            name, least = bound_us(row["ops"])
            continue
        key = named[row["schedule"]]
        if "ops" in row:
            ops[key] = row["ops"]
        else:
            us[key][row["round"]] = row["us"]
    print(f"{'ms':>7} {'x base':>7} {'x bound':>8} {'combine waits':>14}  schedule (bound by)")
    for each in candidates:
        base = baselines[each]
        ratio = statistics.median(us[base][number] / us[each][number] for number in us[each])
        median = statistics.median(us[each].values())
        waits = sum(op["waited_us"] for op in ops[each] if op["step"].endswith("combine"))
        print(
            f"{median / 1e3:7.3f} {ratio:7.2f} {median / least:8.2f} {waits / 1e3:11.3f} ms"
            f"  {each.label} ({name}: {least / 1e3:.3f})"
        )


Baselines = dict[Candidate, Candidate]


def by_route(
    routes: list[str], settings: list[dict[str, Any]], **common: Any
) -> tuple[list[Candidate], Baselines]:
    """Candidates, and which of them each is compared with: one piece by the same route."""
    candidates, baselines = [], {}
    for route in routes:
        base = candidate(route=route, **common, pieces=1, compute=1)
        for each in (base, *(candidate(route=route, **setting) for setting in settings)):
            candidates.append(each)
            baselines[each] = base
    return candidates, baselines


def launch_rows(preset: str, inputs: Inputs, rounds: int) -> Iterator[dict[str, Any]]:
    """Host time of ``graph.launch()`` beside the raw driver call on the same executable."""
    import time

    from cuda.bindings import driver

    graph = ready(candidate(route="p2p", pieces=1, compute=1), preset, inputs)
    stream = torch.cuda.Stream(0)
    graph.launch(stream)
    handle = driver.CUgraphExec(graph._executable.handle)
    raw_stream = driver.CUstream(stream.cuda_stream)

    def raw() -> None:
        driver.cuGraphLaunch(handle, raw_stream)

    def ours() -> None:
        graph.launch(stream)

    for number in range(rounds):
        for name, call in random.Random(number).sample([("raw", raw), ("graph.launch", ours)], 2):
            spent = []
            for _ in range(50):
                stream.synchronize()
                start = time.perf_counter_ns()
                call()
                spent.append((time.perf_counter_ns() - start) / 1e3)
            yield {"round": number, "call": name, "us": statistics.median(spent)}
    graph.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["pieces", "share", "skew", "launch"])
    parser.add_argument("--preset", default="full")
    parser.add_argument("--routes", default="host,host_copy,host_push,p2p,p2p_read,p2p_write")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--replays", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    routes = options.routes.split(",")
    machine = doctor_facts(with_rates=False)
    facts = {
        "gpu": machine.gpus[0].name,
        "gpus": len(machine.gpus),
        "driver": machine.driver,
        "nvrtc": machine.nvrtc,
        "preset": options.preset,
    }
    inputs = Inputs(skew=3.0 if options.what == "skew" else 0.0)
    if options.what == "launch":
        rows = list(launch_rows(options.preset, inputs, max(options.rounds, 20)))
        for call in ("raw", "graph.launch"):
            found = [row["us"] for row in rows if row["call"] == call]
            print(f"{call:14} {statistics.median(found):6.2f} us")
    else:
        rows = []
        for candidates, baselines in groups(options.what, routes):
            measures = measured(
                candidates, options.preset, inputs, rounds=options.rounds, replays=options.replays
            )
            own = list(measures)
            table(own, candidates, baselines)
            rows += own
            inputs.arrays.clear()
    if options.out:
        with options.out.open("a") as file:
            file.writelines(
                json.dumps({"what": options.what, **facts, **row}) + "\n" for row in rows
            )


def groups(what: str, routes: list[str]) -> Iterator[tuple[list[Candidate], Baselines]]:
    """Candidates that must leave the same bits, with what each is compared with."""
    even = [{"pieces": pieces, "compute": compute} for pieces, compute in EVEN]
    uneven = [{"pieces": 16, "schedule.cuts.compute": each} for each in UNEVEN]
    if what == "pieces":
        emits = [{**even[4], "emit": emit} for emit in ("nodes", "streams")]
        for route in routes:
            # Kernels that cross the link need multiprocessors that the experts leave free.
            crowded = [even[4], *uneven] if route in ("host", "host_push") else []
            bounded = [{**each, "expert_blocks": 124, "link_blocks": 32} for each in crowded]
            yield by_route([route], [*even, *uneven, *bounded, *emits])
    if what == "skew":
        yield by_route(routes, [even[1], even[4], uneven[0]])
    if what == "share":
        for experts in (128, 160, 176, 192, 208, 224):
            settings = [{"peer_experts": experts, **each} for each in (even[2], even[4], *uneven)]
            yield by_route(routes, settings, peer_experts=experts)


if __name__ == "__main__":
    main()
