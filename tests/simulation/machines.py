"""A machine whose figures are round, so that timelines can be worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from graphc.profiles import ProfileSpec, load_profile
from graphc.simulation.demands import Demand, Flow, Kind, Links, from_host, to_host
from graphc.simulation.engine import Ran, Task, run

ROUND: dict[str, Any] = {
    "graphc_machine": 1,
    "name": "round",
    "doc": "Round figures.",
    "gpus": {
        "name": "G", "count": 2, "arch": 90, "sms": 10, "shared_optin": 100_000,
        "copy_engines": 3, "source": "invented",
    },
    "memory": {"gb_s": 1000, "one_sm_gb_s": 1000, "source": "invented"},
    "arithmetic": {"tflops": {"f32": 10, "f16": 100}, "source": "invented"},
    "host": {
        "to_host_gb_s": 10, "from_host_gb_s": 10, "both_ways_gb_s": 8, "all_gb_s": 5, "copy_us": 2,
        "reads_gb_s": [[1, 10]], "writes_gb_s": [[1, 10]], "source": "invented",
    },
    "peer": {
        "copy_gb_s": 100, "both_ways_gb_s": 100, "copy_us": 2, "reads_gb_s": [[1, 100]],
        "writes_gb_s": [[1, 100]], "source": "invented",
    },
    "overhead": {
        "launch_us": 3, "node_us": 0, "copy_node_us": 1, "call_us": 5, "start_us": 0,
        "kernel_us": 0, "same_stream_us": 1, "same_gpu_us": 2, "across_gpus_us": 4,
        "source": "invented",
    },
}  # fmt: skip


def round_machine(folder: Path, **changes: Any) -> ProfileSpec:
    path = folder / "round.yaml"
    path.write_text(yaml.safe_dump({**ROUND, **changes}))
    return load_profile(path)


def ran(profile: ProfileSpec, *tasks: Task) -> list[Ran]:
    return run(tasks, profile, Links.of(profile))


def task(demand: Demand, before: tuple[int, ...] = (), stream: int = 0, priority: int = 0) -> Task:
    return Task(demand, before, stream, demand.gpu, priority)


def copy(engine: str, us: float, gpu: int = 0) -> Demand:
    """A copy that takes so long beside its fixed 2 us, at 10 GB/s."""
    links = to_host(gpu) if engine == "copy to host" else from_host(gpu)
    flow = Flow(links, us * 1e4, [[1.0, 10.0]])
    return Demand(Kind.COPY, engine, gpu, 2.0, flows=(flow,))


def wide(us: float, sms: float = 10.0) -> Demand:
    return Demand(Kind.WIDE, "sm", 0, 0.0, us, sms)


def narrow(us: float, sms: float = 10.0, *, is_on_link: bool = False) -> Demand:
    """Bound by its arithmetic, or, on a link, by 10 GB/s."""
    if is_on_link:
        flow = Flow((0, 1, 3), us * 1e4, [[1.0, 10.0]])
        return Demand(Kind.NARROW, "sm", 0, 0.0, 0.0, sms, flows=(flow,))
    return Demand(Kind.NARROW, "sm", 0, 0.0, us, sms)


def streaming(us: float, sms: float = 10.0) -> Demand:
    """Bound by the memory, at 1000 GB/s."""
    return Demand(Kind.NARROW, "sm", 0, 0.0, 0.0, sms, memory=((0, us * 1e6),))
