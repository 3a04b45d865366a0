"""The peer layer on two GPUs by phases: what each took, and what its streams waited, apart.

    python benchmarks/trace_phases.py --out benchmarks/results/trace_phases.jsonl --keep traces

Each schedule is replayed untraced, then traced by events around every op, then by CUPTI's records
of every node. A row is one phase of one schedule by one way: medians over the replays. ``plain_us``
is the untraced replay, which tells how much a way of tracing costs. ``--keep`` takes the trace
files and pages of the first schedule.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peer_layer import Candidate, Inputs, candidate, ready

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.draw.look import trace_page
from graphc.gpu.cupti import has_cupti
from graphc.gpu.probe import doctor_facts
from graphc.kernels.contract import Catalog
from graphc.predict import placed_on
from graphc.profiles import load_profile
from graphc.resources import kernel_folders
from graphc.simulation.predict import Prediction, predict
from graphc.tracing import Trace

SCHEDULES = (
    candidate(route="host_copy", pieces=16, **{"schedule.cuts.compute": ("3/8", "3/8", "1/4")}),
    candidate(route="host", pieces=16, compute=2),
    candidate(route="host", pieces=1, compute=1),
    candidate(route="p2p", pieces=1, compute=1),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--preset", default="full")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--machine", default="h200x2", help="profile of the prediction beside it")
    options = parser.parse_args()
    machine = doctor_facts(with_rates=False)
    facts = {
        "what": "phases", "gpu": machine.gpus[0].name, "gpus": len(machine.gpus),
        "driver": machine.driver, "nvrtc": machine.nvrtc, "preset": options.preset,
    }  # fmt: skip
    inputs = Inputs(skew=0.0)
    plain: dict[Candidate, float] = {}
    # CUPTI last: what it leaves behind in a process disturbs no other number.
    with options.out.open("w") as out:
        for by in ("events", *(["cupti"] if has_cupti() else [])):
            for each in SCHEDULES:
                with ready(each, options.preset, inputs) as graph:
                    if each not in plain:
                        plain[each] = statistics.median(graph.time_replays(options.rounds))
                    prediction = predicted(graph, options.machine)
                    found = graphc.trace(
                        graph, by=by, rounds=options.rounds, predicted=prediction.timeline
                    )
                for row in rows(found, each):
                    row = {**facts, "plain_us": plain[each], **row}
                    out.write(json.dumps(row) + "\n")
                out.flush()
                tell(found, each, plain[each])
                if options.keep and each is SCHEDULES[0]:
                    keep(found, prediction, options.keep, by)


def predicted(graph: CudaGraph, machine: str) -> Prediction:
    profile = load_profile(machine)
    return predict(
        graph.variant.schedule,
        profile,
        catalog=Catalog(kernel_folders()),
        placed=placed_on(graph.program, profile, None),
        count=graph.program.capacity,
    )


def rows(found: Trace, each: Candidate) -> Iterator[dict[str, Any]]:
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in each.values}
    errors = [abs(op.error) for op in found.ops if op.error is not None]
    for phase in found.phases:
        yield {
            "schedule": each.label,
            "values": values,
            "by": found.recording.way.value,
            "replays": len(found.timelines),
            "total_us": found.total_us,
            "predicted_us": found.predicted.stop_us if found.predicted else None,
            "median_op_error": statistics.median(errors) if errors else None,
            "strays": len(found.replay.strays),
            "missing": len(found.missing),
            "clocks": dict(found.recording.clocks),
            "phase": phase.phase,
            "ops": phase.ops,
            "clock_us": phase.clock_us,
            "busy_us": phase.busy_us,
            "waited_us": phase.waited_us,
            "waited_for": dict(phase.waited_for),
            "waited_on": dict(phase.waited_on),
        }


def tell(found: Trace, each: Candidate, plain_us: float) -> None:
    recording = found.recording
    print(f"{each.label} by {recording.way}: {found.total_us:.0f} us, untraced {plain_us:.0f} us")
    print(f"  {len(found.replay.strays)} strays, {len(found.missing)} missing; {recording.clocks}")
    for note in recording.notes:
        print(f"  {note}")
    for stray in found.replay.strays:
        print(f"  {stray.what}: {stray.why}")
    for phase in found.phases:
        causes = ", ".join(f"{name} {us:.0f}" for name, us in phase.waited_for.items() if us >= 1)
        print(
            f"  {phase.phase:12} {phase.clock_us:8.0f} {phase.busy_us:8.0f} {phase.waited_us:8.0f}"
            f"  {causes}"
        )


def keep(found: Trace, prediction: Prediction, folder: Path, by: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found.save(folder / f"trace_{by}.json")
    page = trace_page(found, title=f"the peer layer, traced by {by}", prediction=prediction)
    (folder / f"trace_{by}.html").write_text(page)


if __name__ == "__main__":
    main()
