"""The grouped and dense products beside torch's, on one GPU, in alternating rounds.

Sizes of the peer layer: 256 experts, hidden 2560, expert width 640, bf16. torch's ``_grouped_mm``
gets rows that are gathered already and neither gates nor scatters; ours does all of it.

    python benchmarks/grouped_gemm.py [--rounds 7] [--only up,down] [--out rows.jsonl]
                                      [--templates was=FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product as product_of
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_call import TEMPLATES, LoadedKernel

from graphc.gpu import open_driver

EXPERTS, HIDDEN, FF, TOP_K = 256, 2560, 640, 10
MEANS = (16, 40, 80, 160, 320)  # rows an expert
LAUNCHES = 4  # of a round, timed together
Run = Callable[[], None]


@dataclass(frozen=True)
class Contest:
    """One product at one size: what is compared, torch's first."""

    what: str
    size: str
    flops: float
    runs: dict[str, Run]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="up,down,dense")
    parser.add_argument("--paths", default="90,80", help="90: wgmma, 80: mma.sync")
    parser.add_argument("--tiles", default="192", help="values of tile_rows")
    parser.add_argument("--templates", default="", metavar="WAS=FOLDER", help="other kernels, too")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    paths = [int(each) for each in arguments.paths.split(",")]
    tiles = [int(each) for each in arguments.tiles.split(",")]
    folders = {"": TEMPLATES}
    if arguments.templates:
        name, _, folder = arguments.templates.partition("=")
        folders = {f"{name} ": Path(folder).resolve()} | folders
    bench = Bench(paths, tiles, folders)
    machine = {"gpu": torch.cuda.get_device_name(0), "driver": driver_version()}
    rows: list[dict[str, Any]] = []
    for contest in bench.contests(arguments.only.split(",")):
        found = list(measured(contest, arguments.rounds))
        rows += [{**each, **machine} for each in found]
        print(summary(contest, found), flush=True)
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(each) + "\n" for each in rows))


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def measured(contest: Contest, rounds: int) -> Iterator[dict[str, Any]]:
    """One row for each round and contestant; contestants take turns within a round."""
    graphs = {name: captured(run) for name, run in contest.runs.items()}
    for number in range(rounds):
        for name, graph in graphs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            us = start.elapsed_time(stop) * 1000 / LAUNCHES
            yield {
                "benchmark": "grouped_gemm",
                "what": contest.what,
                "size": contest.size,
                "kernel": name,
                "round": number,
                "us": round(us, 2),
            }


def captured(run: Run) -> torch.cuda.CUDAGraph:
    """The launches of one round in a graph, so that the host's time does not count."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            run()
    return graph


def summary(contest: Contest, rows: list[dict[str, Any]]) -> str:
    medians = {
        name: statistics.median(each["us"] for each in rows if each["kernel"] == name)
        for name in contest.runs
    }
    base = next(iter(medians.values()))
    parts = [
        f"{name} {us:7.1f} us {contest.flops / us / 1e6:4.0f} TF {base / us:5.2f}x"
        for name, us in medians.items()
    ]
    return f"{contest.what:5} {contest.size:>12} | " + " | ".join(parts)


class Bench:
    """Weights, and the contests over them."""

    def __init__(
        self, paths: list[int], tiles: list[int], folders: dict[str, Path] | None = None
    ) -> None:
        self.driver, self.paths, self.tiles = open_driver(), paths, tiles
        self.folders = folders or {"": TEMPLATES}  # by what stands before a kernel's label
        self.facts = self.driver.device(0)
        self.w_up = noise(EXPERTS, 2 * FF, HIDDEN, scale=HIDDEN**-0.5)
        self.w_down = noise(EXPERTS, HIDDEN, FF, scale=FF**-0.5)

    def contests(self, only: list[str]) -> Iterator[Contest]:
        sizes = {f"{each} rows": even(each) for each in MEANS}
        sizes |= {"160 skewed": skewed(160), "one expert": np.eye(1, EXPERTS, dtype=int)[0] * 20480}
        for size, counts in sizes.items():
            if "up" in only:
                yield self.up(size, counts)
            if "down" in only:
                yield self.down(size, counts)
        if "up" in only:
            yield self.up("4 x 80 rows", *(even(80, seed) for seed in range(4)))
        if "dense" in only:
            yield from self.dense()

    def load(self, name: str, tensors: dict[str, torch.Tensor], of: int = 1) -> dict[str, Run]:
        """Ours on each path with each tile, on these tensors."""
        runs = {}
        buffers = {key: (KINDS[each.dtype], tuple(each.shape)) for key, each in tensors.items()}
        for path in self.paths:
            if path == 90 and self.facts.capability != 90:
                continue
            for tile, (which, folder) in product_of(self.tiles, self.folders.items()):
                options = {"tile_rows": tile}
                kernel = LoadedKernel(
                    self.driver, name, buffers, options=options, path=path, templates=folder
                )
                label = f"{which}{'wgmma' if path == 90 else 'mma'}/{tile}"
                runs[label] = launcher(kernel, tensors, of)
        return runs

    def up(self, size: str, *counts: np.ndarray) -> Contest:
        """Gate and up of the experts' rows, in as many pieces of the tokens as there are counts."""
        of, pairs = len(counts), [int(each.sum()) for each in counts]
        each = max(pairs) * 2 // TOP_K  # tokens; as many pairs again belong to experts elsewhere
        x = noise(of * each, HIDDEN)
        src = torch.randint(each, (of, each * TOP_K), dtype=torch.int32, device="cuda")
        src += each * torch.arange(of, dtype=torch.int32, device="cuda")[:, None]
        h = torch.full((of * each, TOP_K, FF), float("nan"), dtype=torch.bfloat16, device="cuda")
        bounds = torch.cat([ends(each) for each in counts])
        offsets = (
            bounds + each * TOP_K * torch.arange(of, dtype=torch.int32, device="cuda")[:, None]
        )
        gathered = [x[own[:number].long()] for own, number in zip(src, pairs, strict=True)]
        weights = self.w_up.transpose(1, 2)

        def theirs() -> None:
            for piece in range(of):
                torch._grouped_mm(gathered[piece], weights, offs=bounds[piece, 1:])

        ours = {"x": x, "src": src.reshape(-1, TOP_K), "offsets": offsets, "w": self.w_up, "h": h}
        runs = {"torch": theirs} | self.load("grouped_up", ours, of)
        return Contest("up", size, 4.0 * sum(pairs) * HIDDEN * FF, runs)

    def down(self, size: str, counts: np.ndarray) -> Contest:
        pairs = int(counts.sum())
        tokens = -(-pairs // TOP_K)
        h, offsets = noise(tokens, TOP_K, FF), ends(counts)
        flat = h.flatten(0, 1)[:pairs]
        weights = self.w_down.transpose(1, 2)
        runs: dict[str, Run] = {
            "torch": lambda: torch._grouped_mm(flat, weights, offs=offsets[0, 1:])
        }
        for kind in (torch.bfloat16, torch.float32):
            rows = torch.full((tokens, TOP_K, HIDDEN), float("nan"), dtype=kind, device="cuda")
            tensors = {"h": h, "offsets": offsets, "w": self.w_down, "rows": rows}
            found = self.load("grouped_down", tensors)
            runs |= {f"{label}>{KINDS[kind]}": run for label, run in found.items()}
        return Contest("down", size, 2.0 * pairs * HIDDEN * FF, runs)

    def dense(self) -> Iterator[Contest]:
        tokens = 16384
        x, h = noise(tokens, HIDDEN), noise(tokens, FF)
        for name, given, columns in (
            ("router", x, 2 * EXPERTS),
            ("gate", x, 1),
            ("down", h, HIDDEN),
        ):
            w = noise(columns, given.shape[1])
            y = torch.empty((tokens, columns), dtype=torch.float32, device="cuda")
            runs = {"torch": product(given, w)}
            runs |= self.load("dense", {"x": given, "w": w, "y": y})
            yield Contest("dense", name, 2.0 * tokens * columns * given.shape[1], runs)
        w = noise(2 * FF, HIDDEN)
        both = {"x": x, "w": w, "h": torch.empty_like(h)}
        runs = {"torch": product(x, w)} | self.load("dense_up", both)
        yield Contest("dense", "up", 4.0 * tokens * HIDDEN * FF, runs)


KINDS = {torch.bfloat16: "bf16", torch.float32: "f32", torch.int32: "i32"}


def noise(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device="cuda", dtype=torch.bfloat16) * scale).contiguous()


def product(x: torch.Tensor, w: torch.Tensor) -> Run:
    return lambda: torch.nn.functional.linear(x, w)  # type: ignore[return-value]


def launcher(kernel: LoadedKernel, tensors: dict[str, torch.Tensor], of: int) -> Run:
    """Launches of all pieces; the tensors live as long as it does."""

    def run() -> None:
        at = {name: each.data_ptr() for name, each in tensors.items()}
        for piece in range(of):
            kernel.launch(at, piece=piece, of=of, stream=torch.cuda.current_stream().cuda_stream)

    return run


def even(mean: int, seed: int = 0) -> np.ndarray:
    """Rows of each expert when every choice is equally likely."""
    draw = np.random.default_rng([mean, seed])
    return draw.multinomial(mean * EXPERTS, np.full(EXPERTS, 1 / EXPERTS))


def skewed(mean: int) -> np.ndarray:
    """A few experts with many rows, many with none."""
    weight = 1.0 / (1.0 + np.random.default_rng(3).permutation(EXPERTS))
    return np.random.default_rng(4).multinomial(mean * EXPERTS, weight / weight.sum())


def ends(counts: np.ndarray) -> torch.Tensor:
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return torch.from_numpy(bounds[None]).cuda()


if __name__ == "__main__":
    main()
