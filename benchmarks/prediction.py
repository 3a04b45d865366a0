"""Predicted against measured: whole replays by route, and single ops.

    python benchmarks/prediction.py                               the rows of peer_layer.jsonl
    python benchmarks/prediction.py --rows sweep.jsonl --what sweep       those of a sweep
    python benchmarks/prediction.py --rows steps.jsonl --what sweep --ops    by op, too
    python benchmarks/prediction.py --rows benchmarks/results/all_local.jsonl --what all_local
    python benchmarks/prediction.py --v100                        two V100 beside what was reported

In the rows of ``all_local`` every token went to experts of the primary (the router's weights had
equal rows), on the machine of which the profile's links were calibrated.

A row of a replay has ``us`` and the values of its schedule, in ``params`` or beside it; rows of the
same values are taken by their median. An error is predicted / measured - 1. An op's measured time
runs from where its stream could begin it to its end, with the two nodes that time it, whose share
(``EMPTY_US``, what an empty op shows) is taken off; what is predicted is the same stretch of time.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import graphc
from graphc.simulation.predict import Prediction

HERE = Path(__file__).parent
SPEC = HERE.parent / "specs" / "moe_peer.yaml"
EMPTY_US = 4.0
VALUES = (
    "route", "pieces", "compute", "early", "peer_experts", "expert_blocks", "link_blocks", "emit",
    "units", "sync", "sums", "schedule.cuts.compute",
)  # fmt: skip
Values = tuple[tuple[str, Any], ...]


@dataclass(slots=True)
class Case:
    """One schedule, measured and predicted."""

    values: Values
    us: list[float] = field(default_factory=list)
    ops: list[dict[str, Any]] = field(default_factory=list)
    predicted_us: float = 0.0
    predicted_ops: dict[str, tuple[int, float]] = field(default_factory=dict)  # pieces, us

    @property
    def measured_us(self) -> float:
        return median(self.us)

    @property
    def error(self) -> float:
        return self.predicted_us / self.measured_us - 1

    @property
    def route(self) -> str:
        return str(dict(self.values)["route"])

    @property
    def is_captured(self) -> bool:
        return dict(self.values).get("emit", "capture") == "capture"

    @property
    def label(self) -> str:
        return " ".join(f"{name.rpartition('.')[2]}={value}" for name, value in self.values)


def cases_of(paths: Iterable[Path], what: set[str]) -> list[Case]:
    found: dict[Values, Case] = {}
    for row in (json.loads(line) for path in paths for line in path.open()):
        if row.get("what", "pieces") not in what or row.get("schedule") == "alone":
            continue
        given = {**row, **row.get("params", {}), **row.get("values", {})}
        if "route" not in given or row.get("us", 0) is None:
            continue
        values = tuple((name, plain(given[name])) for name in VALUES if name in given)
        case = found.setdefault(values, Case(values))
        if "us" in row:
            case.us.append(row["us"])
        if "ops" in row and isinstance(row["ops"], list):
            case.ops = row["ops"]
        elif "step_us" in row:
            case.ops = [{"step": step, "us": us} for step, us in row["step_us"].items()]
    return [case for case in found.values() if case.us]


def plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def predict(case: Case, spec: Path, preset: str, machine: str) -> None:
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in case.values}
    found = graphc.simulate(spec, machine=machine, preset=preset, **values)
    case.predicted_us = found.total_us
    case.predicted_ops = by_step(found)


def all_local(folder: Path) -> Path:
    """The spec, estimating that the peer's experts get nothing."""
    text, count = re.subn(r"(?m)^  peer_rows: .*$", "  peer_rows: 0", SPEC.read_text())
    assert count == 1
    path = folder / SPEC.name
    path.write_text(text)
    return path


def by_step(found: Prediction) -> dict[str, tuple[int, float]]:
    steps: dict[str, tuple[int, float]] = {}
    for op, ran in zip(found.orders.ops, found.ran, strict=True):
        pieces, us = steps.get(op.step, (0, 0.0))
        steps[op.step] = pieces + 1, us + ran.stop_us - ran.ready_us
    return steps


def tell(cases: list[Case]) -> Iterator[str]:
    yield "| route | schedules | median error | worst error | best by prediction, over the best |"
    yield "| --- | --- | --- | --- | --- |"
    groups: dict[str, list[Case]] = defaultdict(list)
    for each in cases:
        groups[each.route].append(each)
    for name, own in [*groups.items(), ("all", cases)]:
        errors = [abs(each.error) for each in own]
        worst = max(own, key=lambda each: abs(each.error))
        chosen = min(own, key=lambda each: each.predicted_us)
        best = min(each.measured_us for each in own)
        yield (
            f"| {name} | {len(own)} | {median(errors):.1%} | {worst.error:+.0%} ({worst.label}) "
            f"| {chosen.measured_us / best - 1:+.1%} ({chosen.label}) |"
        )


def tell_each(cases: list[Case]) -> Iterator[str]:
    yield "| schedule | measured, us | predicted, us | error |"
    yield "| --- | --- | --- | --- |"
    for each in cases:
        us = f"{each.measured_us:.0f} | {each.predicted_us:.0f}"
        yield f"| {each.label} | {us} | {each.error:+.1%} |"


def tell_ops(cases: list[Case]) -> Iterator[str]:
    """By step, over all schedules that were timed by op: the median error, and the sums."""
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for case in cases:
        for op in case.ops:
            step = op["step"]
            if step in case.predicted_ops:
                pieces, us = case.predicted_ops[step]
                rows[step.partition("/")[2]].append((op["us"] - EMPTY_US * pieces, us))
    yield "| op | schedules | measured, us | predicted, us | median error |"
    yield "| --- | --- | --- | --- | --- |"
    for step, found in rows.items():
        errors = median(abs(us / max(was, 0.1) - 1) for was, us in found)
        measured, predicted = (median(column) for column in zip(*found, strict=True))
        yield f"| {step} | {len(found)} | {measured:.0f} | {predicted:.0f} | {errors:.0%} |"


# What was reported of two V100 on PCIe 3 without peer access: an engine of another make, whole
# prompts in chunks of 16,384 tokens, by the host, with and without 8 pieces.
LAYERS, CHUNK, PROMPT = 48, 16384, 37808
COMBINE_MS = (3131.0, 1196.0)  # of a prompt, the wait for the peer included: before and after
REPORTED = {"activations early, sums in pieces": 7.5, "activations early": 6.0, "sums": 1.6}  # %
PROMPT_S = 70.0 * PROMPT / 131072  # at the rate of a prompt of 128K: 70 s
WHOLE = {f"schedule.{op}.pieces": 1 for op in ("sums", "results", "combine", "add")}
ARMS: dict[str, dict[str, Any]] = {
    "activations early, sums in pieces": {"pieces": 8, "early": True},
    "activations early": {"pieces": 8, "early": True, **WHOLE},
    "sums": {"pieces": 8, "early": False, "schedule.activations.pieces": 1},
}


def tell_v100() -> Iterator[str]:
    base = prompt_ms(pieces=1, early=False)
    yield f"a prompt of {PROMPT} tokens, {LAYERS} layers: {base / 1e3:.2f} s in the layers' half"
    yield "| pieces | saves, ms | of a prompt of " + f"{PROMPT_S:.1f} s | reported |"
    yield "| --- | --- | --- | --- |"
    for name, values in ARMS.items():
        saved = base - prompt_ms(**values)
        gain = saved / (1e3 * PROMPT_S - saved)
        yield f"| {name} | {saved:.0f} | +{gain:.1%} | +{REPORTED[name]} % |"
    yield f"reported of the combine and its wait: {COMBINE_MS[0] - COMBINE_MS[1]:.0f} ms saved"


def prompt_ms(**values: Any) -> float:
    chunks = [CHUNK] * (PROMPT // CHUNK) + [PROMPT % CHUNK]
    common = {"machine": "v100x2_pcie3", "preset": "full", "route": "host", "compute": 1}
    times = [graphc.simulate(SPEC, count=rows, **common, **values).total_us for rows in chunks]
    return LAYERS * sum(times) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, action="append")
    parser.add_argument("--machine", default="h200x2")
    parser.add_argument("--preset", default="full")
    parser.add_argument("--what", default="pieces,share")
    parser.add_argument("--emit", action="store_true", help="other emissions than capture, too")
    parser.add_argument("--each", action="store_true", help="a line for every schedule")
    parser.add_argument("--ops", action="store_true", help="errors by op")
    parser.add_argument("--v100", action="store_true", help="two V100 beside what was reported")
    options = parser.parse_args()
    if options.v100:
        print("\n".join(tell_v100()))
        return
    paths = options.rows or [HERE / "results" / "peer_layer.jsonl"]
    cases = cases_of(paths, {*options.what.split(",")})
    cases = [each for each in cases if options.emit or each.is_captured]
    if not cases:
        sys.exit(f"no row of {', '.join(map(str, paths))} is what --what says: {options.what}")
    with tempfile.TemporaryDirectory() as folder:
        spec = all_local(Path(folder)) if options.what == "all_local" else SPEC
        for each in cases:
            predict(each, spec, options.preset, options.machine)
    print("\n".join(tell(cases)))
    if options.each:
        print("\n" + "\n".join(tell_each(cases)))
    if options.ops:
        print("\n" + "\n".join(tell_ops(cases)))


if __name__ == "__main__":
    main()
