"""Dispatch and combine over two GPUs, a rank each, in 24 profiles, beside what the link allows.

    python benchmarks/expert_parallel.py ours --out rows.jsonl    the profiles, and rates of peers
    python benchmarks/expert_parallel.py nccl --out rows.jsonl    the same job by NCCL

Hidden 7168, 128 experts, top 8, token-major; 1024, 2048 or 4096 tokens a rank; 24 blocks to
dispatch and 32 to combine, or 130 and 128; bf16 or FP8; prepared in each replay or before. The
entries 'dispatch' (which prepares, or makes sure that the preparation is fresh, and quantises) and
'combine' are launched one behind the other many times between two events, each alone and both by
turns; the experts' place is empty. ``whole`` is one graph of both, in which the combine gathers the
rows as they were received (bf16 only); ``fused`` quantises in the dispatch.

A row is one profile in one round: ``us`` is the time of one replay on both ranks, ``launch_us`` the
host's time to launch it while the GPUs are idle. Remote bytes are those of the rows that leave a
rank, the more of both ranks: tokens times the other ranks that they go to times the bytes of a row;
ids, weights and scales are left out. The rates of peers are those of plain copies with as many
blocks, in both directions at once.

NCCL's version has a process for each GPU: the rows for the other rank are gathered
(``index_select``) and sent by ``all_to_all_single``, those that stay are gathered into their place;
back they come by ``all_to_all_single``, and one fused kernel adds both shares of each token. For
FP8 one fused kernel quantises, and the scales are sent, too; ids and weights are not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

HIDDEN, EXPERTS, TOP_K, CAPACITY, RANKS = 7168, 128, 8, 4096, 2
LOCAL = EXPERTS // RANKS
TOKENS = (1024, 2048, 4096)
BLOCKS = ((24, 32), (130, 128))
DTYPES = ("bf16", "fp8_e4m3")
PREPARES = ("automatic", "explicit")
HERE = Path(__file__).parent
Run = Callable[[], None]
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["ours", "nccl"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--ways", default=",".join(WAYS), help="how our graphs are launched")
    parser.add_argument("--kernels", type=Path, action="append", default=[], help="to try others")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "nccl":
        rows = nccl_rows(options.rounds, options.replays)
    else:
        rows = list(our_rows(options))
    rows = [{**machine(), **row} for row in rows]
    table(rows)
    if options.out:
        with options.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def machine() -> Row:
    from graphc.gpu.probe import doctor_facts

    facts = doctor_facts(with_rates=False)
    return {"gpu": facts.gpus[0].name, "gpus": len(facts.gpus), "driver": facts.driver}


# ---- the job ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """The same for all contestants: what each rank has, and where it goes."""

    tokens: int

    def ids(self, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * self.tokens + rank)
        scores = torch.rand((CAPACITY, EXPERTS), generator=generator)
        return scores.topk(TOP_K, dim=1).indices[: self.tokens]

    def x(self, rank: int, device: str) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(rank)
        rows = torch.randn((CAPACITY, HIDDEN), generator=generator, device=device)
        return rows.to(torch.bfloat16)[: self.tokens]

    def goes(self, rank: int, to: int) -> torch.Tensor:
        """The tokens of a rank that go to another."""
        ids = self.ids(rank)
        return torch.nonzero(((ids // LOCAL) == to).any(dim=1)).squeeze(1)

    def number(self, rank: int, home: int) -> torch.Tensor:
        """Of each token of a rank, its choices on another."""
        return ((self.ids(rank) // LOCAL) == home).sum(dim=1)

    def remote_bytes(self, nbytes: int) -> int:
        return max(len(self.goes(rank, 1 - rank)) for rank in range(RANKS)) * HIDDEN * nbytes


# ---- ours ---------------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "graph": {},
    "fused": {"quant": "fused"},
    "eager": {"emit": "streams"},
    "units": {"schedule.units": "device"},
}


class Profile:
    """One plan, ready to be launched for any number of tokens."""

    def __init__(
        self,
        blocks: tuple[int, int],
        way: str,
        kernels: list[Path],
        *,
        is_whole: bool,
        **values: str,
    ) -> None:
        import graphc
        from graphc.backends.cuda import CudaGraph

        given = {
            "gpus": RANKS,
            "hidden": HIDDEN,
            "experts": EXPERTS,
            "top_k": TOP_K,
            "apart": not is_whole,
            "expert": "none" if is_whole else "identity",
            "shared_buffer": is_whole,
            "dispatch_blocks": blocks[0],
            "combine_blocks": blocks[1],
            **{name.replace("emit", "schedule.emit"): each for name, each in WAYS[way].items()},
            **values,
        }
        self.way, self.values, self.blocks = way, values, blocks
        spec = HERE.parent / "specs" / "ep_throughput.yaml"
        self.plan = graphc.compile(spec, kernels=kernels, **given)
        self.entries = ("step",) if is_whole else ("dispatch", "expert", "combine")
        self.graph = CudaGraph(self.plan, devices=[0, 1])
        self.stream = torch.cuda.Stream(0)

    def view(self, rank: int, name: str) -> torch.Tensor:
        return torch.from_dlpack(self.graph[f"rank.{rank}/{name}"])

    def give(self, job: Job) -> None:
        """The job's inputs, and a preparation of them; a first dispatch and combine."""
        for rank in range(RANKS):
            self.view(rank, "tokens").fill_(job.tokens)
            self.view(rank, "x")[: job.tokens].copy_(job.x(rank, f"cuda:{rank}"))
            self.view(rank, "topk")[: job.tokens].copy_(job.ids(rank))
        self.settle()
        if self.values["prepare"] == "explicit":
            self.graph.launch(self.stream, entry="prepare")
        self.launch(*self.entries)
        self.graph.synchronize()
        self.settle()

    def settle(self) -> None:
        for rank in range(RANKS):
            torch.cuda.synchronize(rank)

    def check(self, job: Job) -> None:
        """Exact for bf16. A share is the row times its choices on the rank, or the row itself."""
        most = TOP_K if "expert" in self.entries else 1
        for rank in range(RANKS):
            x = job.x(rank, f"cuda:{rank}").float()
            number = [job.number(rank, home).clamp(max=most) for home in range(RANKS)]
            shares = [(x * each.to(x.device)[:, None]).bfloat16().float() for each in number]
            wanted = sum(shares[1:], shares[0] + 0.0).bfloat16()
            found = self.view(rank, "out")[: job.tokens]
            if self.values["dtype"] == "bf16" and not torch.equal(found, wanted):
                raise SystemExit(f"rank {rank} has other results than {self.values} should leave")
            if not torch.allclose(found.float(), wanted.float(), rtol=0.08, atol=0.25):
                raise SystemExit(f"rank {rank} is too far from the results: {self.values}")

    def launch_us(self, entries: tuple[str, ...]) -> float:
        """The host's time in the launches while the GPUs are idle."""
        spent = []
        for _ in range(5):
            self.settle()
            start = time.perf_counter_ns()
            self.launch(*entries)
            spent.append((time.perf_counter_ns() - start) / 1e3)
        return statistics.median(spent)

    def launch(self, *entries: str) -> None:
        for entry in entries:
            self.graph.launch(self.stream, entry=entry)


def our_rows(options: argparse.Namespace) -> Iterator[Row]:
    tokens = [int(each) for each in options.tokens.split(",")]
    for blocks in BLOCKS:
        rates = Rates(blocks)
        make = partial(Profile, blocks, kernels=options.kernels)
        ways = options.ways.split(",")
        profiles = [
            make(way, is_whole=False, dtype=dtype, prepare=prepare)
            for way, dtype, prepare in product(ways, DTYPES, PREPARES)
            if way != "fused" or dtype != "bf16"
        ]
        profiles += [
            make(way, is_whole=True, dtype="bf16", prepare=prepare)
            for way, prepare in product(ways, PREPARES)
            if way != "fused"
        ]
        for number in tokens:
            job = Job(number)
            for each in profiles:
                each.give(job)
                each.check(job)
            for turn in range(options.rounds):
                yield from rates.rows(number, turn, options.replays)
                for each in random.Random(turn).sample(profiles, len(profiles)):
                    yield from profile_rows(each, job, turn, options.replays)
        for each in profiles:
            each.graph.close()
        rates.close()


def profile_rows(profile: Profile, job: Job, turn: int, replays: int) -> Iterator[Row]:
    sent = job.remote_bytes(1 if profile.values["dtype"] != "bf16" else 2)
    back = job.remote_bytes(2)
    kinds: list[tuple[str, tuple[str, ...], int]] = [
        ("dispatch", ("dispatch",), sent),
        ("combine", ("combine",), back),
        ("both", ("dispatch", "combine"), sent + back),
    ]
    if profile.entries == ("step",):
        kinds = [("whole", ("step",), sent + back)]
    for what, entries, nbytes in kinds:
        us = timed(partial(profile.launch, *entries), profile.stream, replays)
        yield {
            "what": what,
            "by": profile.way,
            "tokens": job.tokens,
            "dispatch_blocks": profile.blocks[0],
            "combine_blocks": profile.blocks[1],
            **profile.values,
            "round": turn,
            "us": us,
            "launch_us": profile.launch_us(entries),
            "remote_bytes": nbytes,
        }
    profile.graph.synchronize()


class Rates:
    """Plain copies between the GPUs with as many blocks, both directions at once."""

    def __init__(self, blocks: tuple[int, int]) -> None:
        import graphc
        from graphc.backends.cuda import CudaGraph

        spec = HERE / "peer_rates" / "peer_rates.yaml"
        self.stream = torch.cuda.Stream(0)
        self.graphs = {}
        for number in blocks:
            plan = graphc.compile(spec, kernels=[spec.parent], blocks=number)
            self.graphs[number] = CudaGraph(plan, devices=[0, 1])
        self.nbytes = 4 * int(plan.params["n"])

    def rows(self, tokens: int, turn: int, replays: int) -> Iterator[Row]:
        """Beside the profiles of so many tokens in the same round."""
        dispatch, combine = self.graphs
        for number, entry in ((dispatch, "write"), (dispatch, "both"), (combine, "read")):
            launch = partial(self.graphs[number].launch, self.stream, entry=entry)
            us = timed(launch, self.stream, replays)
            yield {
                "what": f"peer {entry}",
                "by": "peers",
                "tokens": tokens,
                "blocks": number,
                "round": turn,
                "us": us,
                "remote_bytes": self.nbytes,
            }

    def close(self) -> None:
        for each in self.graphs.values():
            each.close()


def timed(run: Run, stream: torch.cuda.Stream, replays: int) -> float:
    """Microseconds of one run among many, one behind the other."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        run()
    start.record(stream)
    for _ in range(replays):
        run()
    stop.record(stream)
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1000 / replays


# ---- NCCL ---------------------------------------------------------------------------------------


def nccl_rows(rounds: int, replays: int) -> list[Row]:
    import torch.multiprocessing as processes

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    with processes.get_context("spawn").Manager() as manager:
        found = manager.dict()
        processes.spawn(nccl_rank, (rounds, replays, found), nprocs=RANKS, join=True)
        ranks = [found[rank] for rank in range(RANKS)]
    return [
        {**one, "us": max(each["us"] for each in same)}
        for same in zip(*ranks, strict=True)
        for one in same[:1]
    ]


def nccl_rank(rank: int, rounds: int, replays: int, found: Any) -> None:
    import torch.distributed as distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl", rank=rank, world_size=RANKS, device_id=torch.device("cuda", rank)
    )
    rows: list[Row] = []
    for tokens, dtype in product(TOKENS, DTYPES):
        exchange = NcclExchange(Job(tokens), rank, dtype)
        exchange.dispatch()
        exchange.combine()
        exchange.check()
        stream = torch.cuda.current_stream()
        for turn in range(rounds):
            for what, run in (
                ("dispatch", exchange.dispatch),
                ("combine", exchange.combine),
                ("both", exchange.both),
            ):
                distributed.barrier()
                us = timed(run, stream, replays)
                rows.append({"what": what, "by": "nccl", "tokens": tokens, "dtype": dtype})
                rows[-1] |= {"prepare": "explicit", "round": turn, "us": us}
                rows[-1] |= {"remote_bytes": exchange.nbytes(what)}
    found[rank] = rows
    distributed.destroy_process_group()


class NcclExchange:
    """The job with the routing known on the host beforehand; rows of FP8 come with their scales."""

    def __init__(self, job: Job, rank: int, dtype: str) -> None:
        device = f"cuda:{rank}"
        self.job, self.rank, self.dtype = job, rank, dtype
        self.other = 1 - rank
        self.x = job.x(rank, device)
        self.away = job.goes(rank, self.other).to(device)
        self.home = job.goes(rank, rank).to(device)
        coming = len(job.goes(self.other, rank))
        self.splits = [[0, 0], [0, 0]]  # what is sent to each rank, what comes from each
        self.splits[0][self.other], self.splits[1][self.other] = len(self.away), coming
        bytes_ = torch.uint8 if dtype != "bf16" else torch.bfloat16
        self.rows = self.x
        if dtype != "bf16":
            self.rows = torch.empty(self.x.shape, dtype=torch.float8_e4m3fn, device=device)
            self.x_scales = torch.empty((job.tokens, HIDDEN // 128), device=device)
        self.received = torch.empty((coming, HIDDEN), dtype=bytes_, device=device)
        self.scales = torch.empty((coming, HIDDEN // 128), device=device)
        self.kept = torch.empty((len(self.home), HIDDEN), dtype=bytes_, device=device)
        # The experts' place is empty: shares are the rows, times their choices on the rank.
        number = [job.number(each, rank) for each in range(RANKS)]
        theirs = job.x(self.other, device)[job.goes(self.other, rank).to(device)].float()
        factor = number[self.other].to(device)[job.goes(self.other, rank).to(device)]
        self.shares = (theirs * factor[:, None]).bfloat16()
        self.own = (
            self.x[self.home].float() * number[rank].to(device)[self.home][:, None]
        ).bfloat16()
        self.back = torch.empty((len(self.away), HIDDEN), dtype=torch.bfloat16, device=device)
        self.out = torch.empty_like(self.x)
        self.places = torch.full((2, job.tokens), -1, dtype=torch.int32, device=device)
        self.places[0, self.home] = torch.arange(len(self.home), dtype=torch.int32, device=device)
        self.places[1, self.away] = torch.arange(len(self.away), dtype=torch.int32, device=device)

    def quantise(self) -> None:
        blocks = HIDDEN // 128
        kernel("quantise")[(self.job.tokens,)](self.x, self.rows, self.x_scales, blocks, 64)

    def dispatch(self) -> None:
        import torch.distributed as distributed

        if self.dtype != "bf16":
            self.quantise()
            sent = self.x_scales.index_select(0, self.away)
            distributed.all_to_all_single(self.scales, sent, self.splits[1], self.splits[0])
        rows = self.rows.view(self.received.dtype)
        sent = rows.index_select(0, self.away)
        distributed.all_to_all_single(self.received, sent, self.splits[1], self.splits[0])
        torch.index_select(rows, 0, self.home, out=self.kept)

    def combine(self) -> None:
        import torch.distributed as distributed

        distributed.all_to_all_single(self.back, self.shares, self.splits[0], self.splits[1])
        fused_sum(self)

    def both(self) -> None:
        self.dispatch()
        self.combine()

    def check(self) -> None:
        number = [self.job.number(self.rank, home) for home in range(RANKS)]
        shares = [(self.x.float() * each.to(self.x.device)[:, None]).bfloat16() for each in number]
        if not torch.equal(self.out, (shares[0].float() + shares[1].float()).bfloat16()):
            raise SystemExit("NCCL's version has other results")

    def nbytes(self, what: str) -> int:
        sent = self.job.remote_bytes(1 if self.dtype != "bf16" else 2)
        back = self.job.remote_bytes(2)
        return {"dispatch": sent, "combine": back, "both": sent + back}[what]


def fused_sum(exchange: NcclExchange) -> None:
    """Both shares of each token, added in f32 and rounded once."""
    own, back, places, out = exchange.own, exchange.back, exchange.places, exchange.out
    grid = (exchange.job.tokens, HIDDEN // 1024)
    kernel("add_two")[grid](own, back, places, out, exchange.job.tokens, HIDDEN, 1024)


def kernel(name: str) -> Any:
    """One of those that need Triton."""
    sys.path.insert(0, str(HERE))
    import nccl_kernels

    return vars(nccl_kernels)[name]


# ---- what is printed ----------------------------------------------------------------------------


def table(rows: list[Row]) -> None:
    keys = ("by", "what", "tokens", "dispatch_blocks", "blocks", "dtype", "prepare")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key, "") for key in keys), []).append(row)
    for key, own in groups.items():
        us = statistics.median(each["us"] for each in own)
        rate = own[0]["remote_bytes"] / us / 1e3
        print(
            f"{us:8.1f} us {rate:6.1f} GB/s  " + " ".join(str(each) for each in key if each != "")
        )


if __name__ == "__main__":
    main()
