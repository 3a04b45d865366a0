"""The layer's memory-bound kernels by themselves, on one GPU, beside a copy, in alternating rounds.

Sizes of the peer layer: 16,384 tokens, hidden 2560, 10 of 512 experts, half of them on the device.
The floor is the time a device-to-device copy needs, in the same round, for as many bytes as the
kernel must read and write. Inputs rotate where one set of them would stay in the L2 cache; routing
tables are small and stay there, as they do in the layer.

    python benchmarks/layer_kernels.py [--rounds 9] [--only router] [--out rows.jsonl]
                                       [--templates was=folder] [--blocks 0,528]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from kernel_call import TEMPLATES, LoadedKernel

from graphc.gpu import open_driver

TOKENS, HIDDEN, EXPERTS, TOP_K = 16384, 2560, 512, 10
LOCAL = EXPERTS // 2
PAIRS = TOKENS * TOP_K
LAUNCHES = 4  # of a round, timed together
KINDS = {torch.float16: "f16", torch.float32: "f32", torch.int32: "i32"}
Run: TypeAlias = Callable[[], None]
Tensors: TypeAlias = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Subject:
    """One kernel at one size: its arguments, as many sets as rotate, and the bytes it must move."""

    kernel: str
    size: str
    sets: list[Tensors]
    nbytes: int
    scalars: dict[str, int]
    piece: int = 0
    of: int = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="kernels, with commas between")
    parser.add_argument("--templates", action="append", default=[], help="label=folder to compare")
    parser.add_argument("--blocks", default="0", help="bounds on the grids, with commas between")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    folders = {"shipped": TEMPLATES}
    folders |= {
        label: Path(folder)
        for label, folder in (each.split("=", 1) for each in arguments.templates)
    }
    bench = Bench(folders, [int(each) for each in arguments.blocks.split(",")])
    rows: list[dict[str, Any]] = []
    for subject in subjects(arguments.only):
        found = list(bench.measured(subject, arguments.rounds))
        rows += found
        print(summary(subject, found), flush=True)
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(each) + "\n" for each in rows))


class Bench:
    """Times kernels of several folders of templates, under several bounds on their grids."""

    def __init__(self, folders: dict[str, Path], blocks: list[int]) -> None:
        self.driver, self.folders, self.blocks = open_driver(), folders, blocks
        self.machine = {"gpu": torch.cuda.get_device_name(0), "driver": driver_version()}
        self.source = torch.randn(2**27, device="cuda")
        self.target = torch.empty_like(self.source)

    def contestants(self, subject: Subject) -> dict[str, Run]:
        shapes = {
            name: (KINDS[each.dtype], tuple(each.shape)) for name, each in subject.sets[0].items()
        }
        runs: dict[str, Run] = {}
        for label, folder in self.folders.items():
            kernel = LoadedKernel(
                self.driver, subject.kernel, shapes, scalars=subject.scalars, templates=folder
            )
            for bound in self.blocks:
                name = label + (f"/{bound}" if bound else "")
                runs[name] = partial(launch_all, kernel, subject, bound)
        return runs

    def measured(self, subject: Subject, rounds: int) -> Iterator[dict[str, Any]]:
        """One row for each round and contestant; contestants take turns within a round."""
        graphs = {name: captured(run) for name, run in self.contestants(subject).items()}
        for number in range(rounds):
            copied = 2 * self.source.nbytes / timed(self.copy)  # bytes a us
            for name, graph in graphs.items():
                yield {
                    "benchmark": "layer_kernels",
                    "kernel": subject.kernel,
                    "size": subject.size,
                    "templates": name,
                    "round": number,
                    "us": round(timed(graph.replay), 2),
                    "floor_us": round(subject.nbytes / copied, 2),
                    "copy_tb_s": round(copied / 1e6, 3),
                    **self.machine,
                }

    def copy(self) -> None:
        """Not in a graph, where copy engines do it, and slower."""
        for _ in range(LAUNCHES):
            self.target.copy_(self.source)


def launch_all(kernel: LoadedKernel, subject: Subject, blocks: int) -> None:
    stream = torch.cuda.current_stream().cuda_stream
    for number in range(LAUNCHES):
        tensors = subject.sets[number % len(subject.sets)]
        at = {name: each.data_ptr() for name, each in tensors.items()}
        kernel.launch(at, piece=subject.piece, of=subject.of, blocks=blocks, stream=stream)


def captured(run: Run) -> torch.cuda.CUDAGraph:
    """The launches of one round in a graph, so that the host's time does not count."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def timed(run: Run) -> float:
    """Microseconds of one launch, in the second of two runs."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1000 / LAUNCHES


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def summary(subject: Subject, rows: list[dict[str, Any]]) -> str:
    def median(of: str, name: str) -> float:
        return float(statistics.median(each[of] for each in rows if each["templates"] == name))

    names = list(dict.fromkeys(each["templates"] for each in rows))
    parts = [f"{name} {median('us', name):7.1f}" for name in names]
    floor = median("floor_us", names[0])
    return f"{subject.kernel:13} {subject.size:>12} | floor {floor:6.1f} us | " + " | ".join(parts)


# ---- what is measured ---------------------------------------------------------------------------


def subjects(only: str) -> Iterator[Subject]:
    makers: dict[str, Callable[[], Iterator[Subject]]] = {
        "router": router,
        "group_rows": group_rows,
        "weighted_sums": partial(sums, "weighted_sums"),
        "moe_combine": partial(sums, "moe_combine"),
        "residual_add": residual_add,
        "rms_mix": rms_mix,
    }
    for name in only.split(",") if only else makers:
        yield from makers[name]()


def router() -> Iterator[Subject]:
    nbytes = 4 * TOKENS * EXPERTS + 8 * PAIRS
    for size in (f"top {TOP_K} of {EXPERTS}", "equal logits"):
        logits = [floats(TOKENS, EXPERTS) for _ in range(LAUNCHES)]
        if size == "equal logits":
            logits = [each.sign() for each in logits]
        sets = [{"logits": each, "ids": whole(TOKENS, TOP_K), "weight": blank()} for each in logits]
        yield Subject("router", size, sets, nbytes, {})


def group_rows() -> Iterator[Subject]:
    for of in (1, 4):
        tensors = {
            "ids": chosen_experts(),
            "offsets": whole(of, LOCAL + 1),
            "src": whole(TOKENS, TOP_K),
            "slot": whole(TOKENS, TOP_K),
        }
        size = "whole" if of == 1 else f"piece of {of}"
        yield Subject("group_rows", size, [tensors], 10 * PAIRS // of, {"first": 0}, of // 2, of)


def sums(kernel: str) -> Iterator[Subject]:
    slot = torch.where(chosen_experts() < LOCAL, scattered_rows(), -1).to(torch.int32)
    found = int((slot >= 0).sum())
    for kind in (torch.float32, torch.float16):
        rows = floats(TOKENS, TOP_K, HIDDEN, kind=kind)
        tensors = {"rows": rows, "slot": slot, "weight": blank().uniform_()}
        if kernel == "moe_combine":
            tensors |= {"shared": floats(TOKENS, HIDDEN), "out": floats(TOKENS, HIDDEN)}
            others = 3 * 4 * TOKENS * HIDDEN
        else:
            tensors |= {"sum": floats(TOKENS, HIDDEN, kind=kind)}
            others = tensors["sum"].nbytes
        nbytes = found * HIDDEN * rows.element_size() + others + 8 * PAIRS
        yield Subject(kernel, f"{KINDS[kind]} rows", [tensors], nbytes, {})


def residual_add() -> Iterator[Subject]:
    tensors = {"y": floats(TOKENS, HIDDEN), "x": floats(TOKENS, HIDDEN)}
    yield Subject("residual_add", "f32", [tensors], 3 * 4 * TOKENS * HIDDEN, {})


def rms_mix() -> Iterator[Subject]:
    tensors = {
        "x": floats(TOKENS, HIDDEN),
        "w": floats(HIDDEN),
        "mixed": floats(TOKENS, HIDDEN),
        "mixed_h": floats(TOKENS, HIDDEN, kind=torch.float16),
    }
    yield Subject("rms_mix", "f32 and f16", [tensors], 10 * TOKENS * HIDDEN, {})


def floats(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=kind)


def blank() -> torch.Tensor:
    return torch.empty((TOKENS, TOP_K), device="cuda")


def whole(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="cuda", dtype=torch.int32)


def chosen_experts() -> torch.Tensor:
    return floats(TOKENS, EXPERTS).topk(TOP_K, dim=1).indices.to(torch.int32)


def scattered_rows() -> torch.Tensor:
    return torch.randperm(PAIRS, device="cuda").reshape(TOKENS, TOP_K)


if __name__ == "__main__":
    main()
