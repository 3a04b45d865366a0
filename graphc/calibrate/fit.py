"""Times -> a profile as data: what is left of a time when the rest of it is known.

Timing an op costs a part of its time: what the ops of a layer take together beyond a replay of it
without. Of a chain only sums can be seen, an op and the way to the next; on one stream half of it
is taken for the way, which fixes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphc.calibrate import specs
from graphc.calibrate.measure import CHAIN, COUNTS, PARTS, PIECES, Figures, Moves
from graphc.ir import Kernel, Program
from graphc.kernels.contract import Catalog
from graphc.kernels.costs import Cost, GpuShape, kernel_costs

NBYTES = specs.ROWS * specs.HIDDEN * 2
COPIES = 4 * PIECES  # of the graph whose launch is timed
WIDE = {  # template -> (op, what its curve is drawn over)
    "grouped_up": ("up", "rows / experts"),
    "grouped_down": ("down", "used / experts"),
}
DENSE = {"dense": ("shared_down", "score"), "dense_up": ("shared_up",)}  # over the depth
CUT = {
    "rms_mix": "mix",
    "weighted_sums": "sums",
    "moe_combine": "combine",
    "residual_add": "add",
    "convert": "widen",
}
WHOLE = {"router": "router", "group_rows": "group"}
ALL = COUNTS[-1]  # tokens
AS_GOOD = 0.97  # of the rate: no efficiency is written


class Fit:
    """What is known so far, from the simplest figures up."""

    def __init__(self, figures: Figures, program: Program, catalog: Catalog) -> None:
        self.figures = figures
        self.step_us = self.kernel_us = figures.same_stream_us / 2
        self.start_us = max(0.0, figures.single_us - self.kernel_us)
        timed = figures.layer_pieces.values()
        beyond = sum(timed) + len(timed) * self.step_us + self.start_us - figures.layer_pieces_us
        self.timing_us = max(0.0, beyond / len(timed))
        first = figures.gpus[0]
        shape = GpuShape(first.capability, first.sms, first.shared_optin)
        self.costs = {}
        for count in COUNTS:
            found = kernel_costs(program, catalog, shape, count=count)
            self.costs[count] = {op.name: cost for op, cost in found}
        self.templates = {
            op.name: op.work.template for op in program if isinstance(op.work, Kernel)
        }
        self.bandwidth = self.cost("add", ALL).nbytes / self.work_us("add", ALL)
        self.flops = max(
            self.cost(name, ALL).flops / self.work_us(name, ALL)
            for name in ("wide", "score", "shared_up", "up", "down")
        )

    def cost(self, op: str, count: int) -> Cost:
        return self.costs[count][op]

    def work_us(self, op: str, count: int) -> float:
        """Of an op, without what timing it and starting it cost."""
        taken = self.figures.layer[count][op] - self.timing_us - self.kernel_us
        return max(0.1, taken)

    def profile(self, name: str) -> dict[str, Any]:
        figures, first = self.figures, self.figures.gpus[0]
        source = f"graphc calibrate on {figures.about}"
        return {
            "graphc_machine": 1,
            "name": name,
            "doc": f"Measured on {figures.about}.",
            "gpus": {
                "name": first.name,
                "count": len(figures.gpus),
                "arch": first.capability,
                "sms": first.sms,
                "shared_optin": first.shared_optin,
                "copy_engines": 3,
                "source": "the driver's attributes; three copy engines are assumed",
            },
            "memory": {
                "gb_s": rate(self.bandwidth),
                "one_sm_gb_s": rate(2 * self.bandwidth / first.sms),
                "source": f"{source}: residual_add of {ALL} rows; that half of the "
                "multiprocessors reach the rate is assumed",
            },
            "arithmetic": {
                "tflops": {
                    "f16": significant(self.flops / 1e6),
                    "bf16": significant(self.flops / 1e6),
                    "f32": significant(first.sms * 256 * 1.7e9 / 1e12),
                },
                "source": f"{source}: the best of the products with f16, bf16 taken alike; f32 "
                "from the multiprocessors at 1.7 GHz",
            },
            "host": self.host(source),
            "peer": self.peer(source),
            "overhead": self.overhead(source),
            "kernels": self.kernels(source),
        }

    def host(self, source: str) -> dict[str, Any]:
        figures, alone = self.figures, self.figures.through_host.alone
        copy_us = self.copy_us(figures.through_host)

        def of(op: str) -> float:
            return rate(NBYTES / (alone[op] - self.timing_us - copy_us))

        down, up = [of("there0/down"), of("back0/down")], [of("back0/up"), of("there0/up")]
        count = len(figures.gpus)
        piece = NBYTES / PIECES
        both_ways, at_once = (
            rate(piece / (us - self.timing_us - copy_us))
            for us in (figures.both_ways_us, figures.through_host.at_once_us)
        )
        found: dict[str, Any] = {
            "to_host_gb_s": down if count == 2 else down[0],
            "from_host_gb_s": up if count == 2 else up[0],
            "both_ways_gb_s": both_ways,
            "all_gb_s": at_once if count > 1 else both_ways,
            "copy_us": significant(copy_us),
            "reads_gb_s": self.by_blocks("reads"),
            "writes_gb_s": self.by_blocks("writes"),
        }
        return {**found, "source": f"{source}: copies and kernels of {NBYTES / 1e6:.0f} MB"}

    def peer(self, source: str) -> dict[str, Any] | None:
        moves = self.figures.by_peer
        if moves is None:
            return None
        copy_us = self.copy_us(moves)
        alone = [us for name, us in moves.alone.items() if name.endswith("move")]
        return {
            "copy_gb_s": rate(NBYTES / (min(alone) - self.timing_us - copy_us)),
            "both_ways_gb_s": rate(NBYTES / PARTS / (moves.at_once_us - self.timing_us - copy_us)),
            "copy_us": significant(copy_us),
            "reads_gb_s": self.by_blocks("peer_reads"),
            "writes_gb_s": self.by_blocks("peer_writes"),
            "source": f"{source}: copies and kernels of {NBYTES / 1e6:.0f} MB",
        }

    def copy_us(self, moves: Moves) -> float:
        """What a copy costs beside its bytes: copies of a chain go from GPU to GPU in turn."""
        step = self.figures.across_gpus_us or self.figures.same_gpu_us
        return max(0.5, moves.tiny_us - (step - self.kernel_us))

    def by_blocks(self, way: str) -> list[list[float]]:
        """The rate by blocks, as long as more of them make it higher."""
        points: list[list[float]] = []
        for blocks in self.figures.blocks:
            us = self.figures.reach[f"{way}_{blocks}"] - self.timing_us - self.kernel_us
            found = rate(NBYTES / us)
            if not points or found > 1.005 * points[-1][1]:
                points.append([blocks, found])
        return points

    def overhead(self, source: str) -> dict[str, Any]:
        figures, launch = self.figures, self.figures.launches
        node_us = max(0.0, (launch.chain_us - launch.one_us) / (CHAIN - 1))
        copy_node_us = 0.0
        if launch.copies_us is not None:
            copy_node_us = (launch.copies_us - launch.one_us) / COPIES - node_us
        across = figures.across_gpus_us or figures.same_gpu_us
        found = {
            "launch_us": launch.one_us,
            "node_us": node_us,
            "copy_node_us": max(0.0, copy_node_us),
            "call_us": launch.eager_us / CHAIN,
            "start_us": self.start_us,
            "kernel_us": self.kernel_us,
            "same_stream_us": self.step_us,
            "same_gpu_us": max(0.1, figures.same_gpu_us - self.kernel_us),
            "across_gpus_us": max(0.1, across - self.kernel_us),
        }
        rounded: dict[str, Any] = {key: significant(value) for key, value in found.items()}
        return {**rounded, "source": f"{source}: chains of {CHAIN} tiny kernels, and launches"}

    def kernels(self, source: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for template, (op, over) in WIDE.items():
            points = [
                [significant(self.measure(op, count)), self.efficiency(op, count)]
                for count in COUNTS
            ]
            found[template] = {"over": over, "efficiency": points, "source": source}
        for template, ops in DENSE.items():
            points = sorted([self.depth(op), self.efficiency(op, ALL)] for op in ops)
            found[template] = {"over": "k", "efficiency": points, "source": source}
        for template, op in CUT.items():
            found[template] = {**self.narrow(op), "source": source}
        for template, op in WHOLE.items():
            start_us = self.work_us(op, ALL) - self.cost(op, ALL).nbytes / self.bandwidth
            found[template] = {"start_us": significant(max(0.0, start_us)), "source": source}
        return found

    def measure(self, op: str, count: int) -> float:
        """Rows an expert: the layer gives half of the pairs to its 256 experts."""
        return count * 5 / 256

    def depth(self, op: str) -> int:
        return {"shared_down": 640}.get(op, specs.HIDDEN)

    def efficiency(self, op: str, count: int) -> float:
        """Of the formula's rate: the slower of arithmetic and memory."""
        cost = self.cost(op, count)
        best = max(cost.flops / self.flops, cost.nbytes / self.bandwidth)
        return significant(min(1.0, best / self.work_us(op, count)))

    def narrow(self, op: str) -> dict[str, Any]:
        """A start and a rate, from the pieces and the whole."""
        every = self.work_us(op, ALL)
        pieces = sum(
            us - self.timing_us - self.kernel_us
            for name, us in self.figures.layer_pieces.items()
            if name.startswith(f"{op}/")
        )
        start_us = max(0.0, (pieces - every) / (PIECES - 1))
        best = self.cost(op, ALL).nbytes / self.bandwidth
        share = min(1.0, best / max(0.1, every - start_us))
        found: dict[str, Any] = {"start_us": significant(start_us)}
        if share < AS_GOOD:
            found |= {"over": 1, "efficiency": [[1, significant(share)]]}
        return found


def rate(bytes_per_us: float) -> float:
    return significant(bytes_per_us / 1e3)


def significant(value: float, digits: int = 3) -> float:
    """
    >>> significant(1234.5), significant(0.012345), significant(0.0)
    (1230.0, 0.0123, 0.0)
    """
    return float(f"{value:.{digits}g}")


def as_text(profile: Mapping[str, Any]) -> str:
    """A profile as a file of strict YAML."""
    import yaml

    text: str = yaml.safe_dump(
        dict(profile), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )
    return text
