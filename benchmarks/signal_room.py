"""Whether the kernels by which units wait for each other find room beside the products, on one GPU.

    python benchmarks/signal_room.py [--rounds 7] [--out rows.jsonl]

Products of the peer layer's sizes hold every multiprocessor. ``signal``: from the host's launch of
a signal, while products run, to the signal's value in the host's memory. ``await``: the products'
time while an await polls a word that does not come. The contestants differ in the shared memory
that the small kernel asks for: none, as shipped (``room``), or 1,024 bytes, which the products do
not leave (``no room``); ``alone`` is without products, or without an await. They take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from grouped_gemm import Bench, Run, captured, driver_version, even

from graphc.backends.cuda.kernels import POINTER
from graphc.gpu import open_driver
from graphc.gpu.protocol import Argument, KernelCall
from graphc.kernels.compile import compile_image
from graphc.kernels.signals import AWAIT, BEGIN, SIGNAL, rendered

SHARED = {"room": 0, "no room": 1024}
ROWS = 160  # of an expert
INTO_US = 100  # how long the products have run when the signal is launched
# Bytes from the start of the memory.
WORD, EPOCH, FAILED, LIMIT, STOPPED, RECORD = range(0, 384, 64)


class Small:
    """The small kernels with one word, in memory of this GPU, and a signal's word on the host."""

    def __init__(self) -> None:
        self.driver = open_driver()
        capability = self.driver.device(0).capability
        self.arch = f"sm_{capability}{'a' if capability == 90 else ''}"
        self.functions = {name: self.load(name) for name in (BEGIN, SIGNAL, AWAIT)}
        self.memory = torch.zeros(48, dtype=torch.int64, device="cuda")
        self.memory[LIMIT // 8] = 10**10
        self.at = self.memory.data_ptr()
        self.told = torch.zeros(1, dtype=torch.int64).pin_memory()
        self.host = self.told.numpy()
        self.answers = torch.zeros(1, dtype=torch.int64).pin_memory()
        torch.cuda.synchronize()

    def load(self, name: str) -> int:
        image = rendered(name, 1)
        library = self.driver.load_library(compile_image(image, self.arch))
        kernel = self.driver.kernel(library, image.entry)
        self.driver.prefer_shared(kernel, 0)
        return self.driver.function(kernel)

    def launch(
        self, name: str, stream: torch.cuda.Stream, *arguments: Argument, shared: int = 0
    ) -> None:
        threads = int(rendered(name, 1).launch.block[0])
        call = KernelCall(self.functions[name], (1, 1, 1), (threads, 1, 1), shared, arguments)
        self.driver.launch(call, stream.cuda_stream)

    def place(self, offset: int) -> Argument:
        return POINTER, self.at + offset

    def begin(self, stream: torch.cuda.Stream) -> None:
        """One replay more."""
        self.launch(BEGIN, stream, self.place(EPOCH))
        self.answers[0] += 1
        stream.synchronize()

    def signal(self, stream: torch.cuda.Stream, shared: int) -> None:
        word = POINTER, self.told.data_ptr()
        places = self.place(EPOCH), self.place(FAILED)
        self.launch(SIGNAL, stream, word, ("i", 1), *places, shared=shared)

    def wait(self, stream: torch.cuda.Stream, shared: int) -> None:
        one = ("I", 0), ("i", 1), ("Q", 1)  # not of an earlier replay, one word, who it is
        places = [self.place(each) for each in (FAILED, LIMIT, STOPPED, RECORD)]
        words = self.place(WORD), self.place(EPOCH)
        self.launch(AWAIT, stream, *words, *one, *places, shared=shared)

    def answer(self, stream: torch.cuda.Stream) -> None:
        """Write what the await waits for, by a copy engine."""
        with torch.cuda.stream(stream):
            self.memory[:1].copy_(self.answers, non_blocking=True)
        stream.synchronize()


class Rounds:
    """The contests of one product."""

    def __init__(self, small: Small, products: Run) -> None:
        self.small, self.graph = small, captured(products)
        self.urgent = torch.cuda.Stream(priority=-5)
        self.other = torch.cuda.Stream()

    def signal_us(self, name: str) -> float:
        small = self.small
        small.begin(self.urgent)
        small.host[0] = 0
        torch.cuda.synchronize()
        if name != "alone":
            self.graph.replay()
        spin_us(INTO_US)
        start = time.perf_counter_ns()
        small.signal(self.urgent, SHARED.get(name, 0))
        while not small.host[0]:
            pass
        found = (time.perf_counter_ns() - start) / 1e3
        torch.cuda.synchronize()
        return found

    def products_us(self, name: str) -> float:
        small = self.small
        small.begin(self.urgent)
        torch.cuda.synchronize()
        if name != "alone":
            small.wait(self.urgent, SHARED[name])
        spin_us(INTO_US)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.graph.replay()
        stop.record()
        stop.synchronize()
        small.answer(self.other)
        self.urgent.synchronize()
        assert not small.memory[FAILED // 8].item()
        return float(start.elapsed_time(stop)) * 1000


def spin_us(us: float) -> None:
    until = time.perf_counter_ns() + us * 1e3
    while time.perf_counter_ns() < until:
        pass


def rows(rounds: int) -> Iterator[dict[str, Any]]:
    torch.manual_seed(1)
    bench, small = Bench([90], [192]), Small()
    counts = even(ROWS)
    contests = (bench.up(f"{ROWS} rows", counts), bench.down(f"{ROWS} rows", counts))
    products = {each.what: list(each.runs.values())[1] for each in contests}
    products["dense"] = list(next(bench.dense()).runs.values())[1]
    for product, run in products.items():
        contest = Rounds(small, run)
        ways = {"signal": contest.signal_us, "await": contest.products_us}
        for number in range(-1, rounds):
            for what, measured in ways.items():
                for name in ("alone", *SHARED):
                    us = round(measured(name), 1)
                    row = {"product": product, "what": what, "contestant": name, "us": us}
                    if number >= 0:  # the first is for warming up
                        yield {"benchmark": "signal_room", **row, "round": number}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = {"gpu": torch.cuda.get_device_name(0), "driver": driver_version()}
    found = list(rows(arguments.rounds))
    if arguments.out:
        arguments.out.write_text("".join(json.dumps({**row, **machine}) + "\n" for row in found))
    for key in dict.fromkeys((row["product"], row["what"]) for row in found):
        medians = {
            name: statistics.median(
                row["us"]
                for row in found
                if (row["product"], row["what"], row["contestant"]) == (*key, name)
            )
            for name in ("alone", *SHARED)
        }
        print(*key, *(f"{name} {us:.1f}" for name, us in medians.items()), flush=True)


if __name__ == "__main__":
    main()
