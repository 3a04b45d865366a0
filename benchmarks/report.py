"""The tables of docs/measured.md and docs/trace.md, from the raw rows in ``benchmarks/results/``.

    python benchmarks/report.py            print them
    python benchmarks/report.py --write    put them into the pages, between their marks

A ratio is the median of the ratios of single rounds, in which both were measured in turn.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGES = [HERE.parent / "docs" / name for name in ("measured.md", "trace.md")]
MARKS = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    with (RESULTS / f"{name}.jsonl").open() as file:
        return [json.loads(line) for line in file]


def peer_layer(what: str) -> Iterator[str]:
    """A line for each schedule, route by route (and share by share), the fastest first."""
    rows = [row for row in rows_of("peer_layer") if row["what"] == what]
    us: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if "us" in row:
            us[row["schedule"]][row["round"]] = row["us"]
    waits = {row["schedule"]: waited(row) for row in rows if "ops" in row}
    bound = bounds(rows)
    yield "| schedule | ms | times its one piece | of the bound | combine waits, ms |"
    yield "| --- | --- | --- | --- | --- |"
    for name in sorted(us, key=lambda each: (group_of(each), median(us[each].values()))):
        found = us[name]
        values = next(row for row in rows if row["schedule"] == name)
        base = next(each for each in us if is_base(each) and group_of(each) == group_of(name))
        ratio = median(us[base][number] / found[number] for number in found)
        share = median(found.values()) / bound[str(values.get("peer_experts"))]
        yield (
            f"| {name} | {median(found.values()) / 1e3:.2f} | {ratio:.2f} | {share:.2f} "
            f"| {waits[name] / 1e3:.2f} |"
        )


def is_base(schedule: str) -> bool:
    return schedule.endswith("pieces=1 compute=1")


def group_of(schedule: str) -> tuple[str, ...]:
    """What must be alike for two schedules to be compared: the route and the share of experts."""
    return tuple(re.findall(r"(?:route|peer_experts)=\S+", schedule))


def waited(row: Row) -> float:
    return sum(op["waited_us"] for op in row["ops"] if op["step"].endswith("combine"))


def bounds(rows: list[Row]) -> dict[str, float]:
    """The busiest engine with every op alone, by share of experts: the least over the routes."""
    found: dict[str, float] = {}
    for row in rows:
        if row["schedule"] == "alone":
            busy: dict[str, float] = defaultdict(float)
            for op in row["ops"]:
                busy[op["engine"]] += op["us"]
            share = str(row.get("peer_experts"))
            found[share] = min(found.get(share, float("inf")), max(busy.values()))
    return found


def alone(route: str = "host") -> Iterator[str]:
    """Every op alone, in one piece."""
    rows = [row for row in rows_of("peer_layer") if row.get("schedule") == "alone"]
    row = next(row for row in rows if row["what"] == "pieces" and row["route"] == route)
    yield "| op | us | engine |"
    yield "| --- | --- | --- |"
    for op in row["ops"]:
        yield f"| {op['step'].partition('/')[2]} | {op['us']:.0f} | {op['engine']} |"


def launch() -> Iterator[str]:
    rows = [row for row in rows_of("peer_layer") if row["what"] == "launch"]
    by_call: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        by_call[row["call"]][row["round"]] = row["us"]
    ours, raw = by_call["graph.launch"], by_call["raw"]
    more = median(ours[number] - raw[number] for number in ours)
    yield "| call | host time, us |"
    yield "| --- | --- |"
    yield f"| the raw driver call | {median(raw.values()):.2f} |"
    yield f"| `graph.launch()` | {median(ours.values()):.2f} |"
    yield f"| more, round by round | {more:+.2f} |"


def gemm() -> Iterator[str]:
    """Our kernels and torch's on the same rows; a ratio above 1 is a kernel that is faster."""
    us: dict[tuple[str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows_of("grouped_gemm"):
        us[row["what"], row["size"]][row["kernel"]][row["round"]] = row["us"]
    yield "| product | rows | torch, us | kernel | us | times as fast |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for (what, size), kernels in us.items():
        torch = kernels.pop("torch")
        for kernel, found in kernels.items():
            ratio = median(torch[number] / found[number] for number in found)
            yield (
                f"| {what} | {size} | {median(torch.values()):.0f} | {kernel} "
                f"| {median(found.values()):.0f} | {ratio:.2f} |"
            )


def gemm_before() -> Iterator[str]:
    """Our kernels as they were and as they are, in turns; a ratio below 1 is a gain."""
    us: dict[tuple[str, str, str], dict[bool, dict[int, float]]]
    us = defaultdict(lambda: defaultdict(dict))
    for row in rows_of("grouped_gemm_before"):
        kernel = row["kernel"].removeprefix("was ")
        us[row["what"], row["size"], kernel][kernel != row["kernel"]][row["round"]] = row["us"]
    yield "| product | rows | kernel | was, us | us | of what it took |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for (what, size, kernel), found in us.items():
        was, now = found[True], found[False]
        ratio = median(now[number] / was[number] for number in now)
        both = f"{median(was.values()):.0f} | {median(now.values()):.0f}"
        yield f"| {what} | {size} | {kernel} | {both} | {ratio:.2f} |"


def layer_kernels() -> Iterator[str]:
    """The kernels bound by memory, beside a copy of as many bytes in the same rounds."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows_of("layer_kernels"):
        if row["templates"] == "shipped":
            found[row["kernel"], row["size"]].append(row)
    yield "| kernel | size | us | a copy of its bytes, us |"
    yield "| --- | --- | --- | --- |"
    for (kernel, size), rows in found.items():
        us, floor = (median(row[each] for row in rows) for each in ("us", "floor_us"))
        yield f"| {kernel} | {size} | {us:.1f} | {floor:.1f} |"


def compile_time() -> Iterator[str]:
    """The cost of an op, by the size of the program: medians over the rounds."""
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows_of("compile_time"):
        found[row["ops"]].append(row)
    yield "| ops | us an op | of it on the processor |"
    yield "| --- | --- | --- |"
    for ops, rows in sorted(found.items()):
        wall, own = (median(row[k] for row in rows) for k in ("total_us_per_op", "cpu_us_per_op"))
        yield f"| {ops:,} | {wall:.0f} | {own:.0f} |"


def start() -> Iterator[str]:
    """One compile of the layer by one route, with the disk cache warm: medians over the rounds."""
    rows = [row["start"] for row in rows_of("compile_time") if "start" in row]
    yield "| preset | imports, s | first compile, s | second, s | calls of NVRTC |"
    yield "| --- | --- | --- | --- | --- |"
    for preset in rows[0]:
        found = [row[preset] for row in rows]
        imports, first, second = (
            median(each[name] for each in found) for name in ("import_s", "first_s", "second_s")
        )
        calls = max(each["first_nvrtc_calls"] + each["second_nvrtc_calls"] for each in found)
        yield f"| {preset} | {imports:.2f} | {first:.2f} | {second:.3f} | {calls:.0f} |"


def phases() -> Iterator[str]:
    """A line for each schedule: the whole, and its last phase with the wait in front of it."""
    rows = [row for row in rows_of("trace_phases") if row["by"] == "cupti"]
    yield "| schedule | untraced | traced | combine | combine waited | of that for |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        if row["phase"] != "combine":
            continue
        causes = ", ".join(
            f"{name} {us / 1e3:.2f}" for name, us in row["waited_for"].items() if us >= 5
        )
        yield (
            f"| {row['schedule']} | {row['plain_us'] / 1e3:.2f} | {row['total_us'] / 1e3:.2f} "
            f"| {row['busy_us'] / 1e3:.2f} | {row['waited_us'] / 1e3:.2f} | {causes} |"
        )


def sweep() -> Iterator[str]:
    """The best few candidates of each route, by their time in the rounds with the baseline."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows_of("sweep_peer_layer"):
        found[row["values"]["route"]].append(row)
    yield "| route | activations | compute | sums | early | ms | of baseline | wins | launch, us |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for route, rows in found.items():
        for row in sorted(rows, key=lambda each: each["relative"])[:3]:
            values, cut = row["values"], row["values"]["schedule.cuts.compute"]
            compute = ", ".join(cut) if isinstance(cut, list) else cut
            yield (
                f"| {route} | {values['pieces']} | {compute} | {values['sums']} "
                f"| {'yes' if values['early'] else 'no'} | {row['us'] / 1e3:.2f} "
                f"| {row['relative']:.3f} | {row['wins']} of {row['rounds']} "
                f"| {row['launch_us']:.0f} |"
            )


def simulated() -> Iterator[str]:
    """Sweeps by a profile, each a new process: medians over the rounds."""
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows_of("sweep_simulated"):
        found[row["candidates"]].append(row)
    yield "| candidates | seconds | a second | ms of processor each | peak memory, MB |"
    yield "| --- | --- | --- | --- | --- |"
    for candidates, rows in sorted(found.items()):
        seconds, rate, own_ms, nbytes = (
            median(row[name] for row in rows)
            for name in ("seconds", "a_second", "cpu_ms_a_candidate", "peak_bytes")
        )
        yield (
            f"| {candidates:,} | {seconds:.1f} | {rate:.0f} | {own_ms:.0f} | {nbytes / 1e6:.0f} |"
        )


def units() -> Iterator[str]:
    """The layer in one graph and in two, by route and pieces; ratios are to one graph."""
    return unit_ratios("units", {"flags": "us", "memops": "us", "flags, free": "back_us"})


def unit_ratios(results: str, ways: dict[str, str]) -> Iterator[str]:
    """A column for each division, with what of it is compared with one graph."""
    found: dict[tuple[str, int], dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows_of(results):
        if row["what"] == "wall":
            found[row["route"], row["pieces"]][row["division"]][row["round"]] = row
    heads = (f"{name}: back to back" if us == "back_us" else name for name, us in ways.items())
    yield f"| route, pieces | one graph, ms | {' | '.join(heads)} |"
    yield "| --- " * (2 + len(ways)) + "|"
    for (route, pieces), divisions in found.items():
        ms = median(row["us"] for row in divisions["one graph"].values()) / 1e3
        ratios = " | ".join(f"{times_one(divisions, *each):.2f}" for each in ways.items())
        yield f"| {route}, {pieces} | {ms:.2f} | {ratios} |"


def times_one(divisions: dict[str, dict[int, Row]], name: str, what: str) -> float:
    one = divisions["one graph"]
    return median(row[what] / one[number][what] for number, row in divisions[name].items())


def unit_launches() -> Iterator[str]:
    """The host's time in a launch, by route and pieces."""
    found: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of("units"):
        if row["what"] == "wall":
            found[row["route"], row["pieces"]][row["division"]].append(row["launch_us"])
    yield "| route, pieces | one graph, us | flags | flags, free | memops |"
    yield "| --- | --- | --- | --- | --- |"
    for (route, pieces), divisions in found.items():
        names = ("one graph", "flags", "flags, free", "memops")
        us = " | ".join(f"{median(divisions[name]):.0f}" for name in names)
        yield f"| {route}, {pieces} | {us} |"


def room(results: str) -> Iterator[str]:
    """Signals while products run, and products while an await polls."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(results):
        found[row["product"], row["what"]][row["contestant"]].append(row["us"])
    yield "| product | measured, us | alone | with room | without |"
    yield "| --- | --- | --- | --- | --- |"
    told = {"signal": "a signal's way to the host", "await": "the products beside an await"}
    for (product, what), us in found.items():
        medians = " | ".join(f"{median(us[name]):.0f}" for name in ("alone", "room", "no room"))
        yield f"| {product} | {told[what]} | {medians} |"


def unit_replays() -> Iterator[str]:
    yield "| route | division | replays | s | wrong bits |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows_of("units"):
        if row["what"] == "replays":
            number = f"{row['replays']:,}"
            yield f"| {row['route']} | {row['division']} | {number} | {row['seconds']:.1f} | none |"


def expert_parallel() -> Iterator[str]:
    """A line for each of the 24 profiles; what copies allow is worked out in the same round."""
    us: dict[tuple[Any, ...], dict[tuple[str, str], dict[int, Row]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    rates: dict[tuple[str, int], dict[tuple[int, int], float]] = defaultdict(dict)
    nccl: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows_of("expert_parallel"):
        if row["by"] == "peers":
            key = row["tokens"], row["round"]
            rates[row["what"], row["blocks"]][key] = row["remote_bytes"] / row["us"]
        elif row["by"] == "nccl":
            if row["what"] == "both":
                nccl[row["tokens"], row["dtype"]].append(row["us"])
        else:
            profile = tuple(row[k] for k in ("tokens", "dispatch_blocks", "combine_blocks"))
            own = us[*profile, row["dtype"], row["prepare"]]
            own[row["by"], row["what"]][row["round"]] = row
    yield (
        "| tokens | blocks | dtype, prepared | dispatch, us | GB/s | combine, us | GB/s "
        "| both, us | eager | units | fused | one graph | of copies | NCCL, us | times as fast |"
    )
    yield "| --- " * 15 + "|"
    for (tokens, send, gather, dtype, prepare), own in sorted(us.items(), key=str):
        dispatch, combine = own["graph", "dispatch"], own["graph", "combine"]
        best = own.get(("graph", "whole")) or own["graph", "both"]
        share = median(
            row["us"]
            / (
                dispatch[turn]["remote_bytes"] / rates["peer write", send][tokens, turn]
                + combine[turn]["remote_bytes"] / rates["peer read", gather][tokens, turn]
            )
            for turn, row in best.items()
        )
        other = median(nccl[tokens, dtype])
        whole = f"{middle(best):.0f}" if ("graph", "whole") in own else ""
        fused = f"{middle(own['fused', 'both']):.0f}" if ("fused", "both") in own else ""
        yield (
            f"| {tokens} | {send}, {gather} | {dtype}, {prepare} | {middle(dispatch):.0f} "
            f"| {rate(dispatch):.0f} | {middle(combine):.0f} | {rate(combine):.0f} "
            f"| {middle(own['graph', 'both']):.0f} | {middle(own['eager', 'both']):.0f} "
            f"| {middle(own['units', 'both']):.0f} | {fused} | {whole} | {share:.2f} | {other:.0f} "
            f"| {other / middle(best):.2f} |"
        )


def middle(rows: dict[int, Row]) -> float:
    return median(row["us"] for row in rows.values())


def rate(rows: dict[int, Row]) -> float:
    return median(row["remote_bytes"] / row["us"] / 1e3 for row in rows.values())


def peer_rates() -> Iterator[str]:
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows_of("expert_parallel"):
        if row["by"] == "peers":
            found[row["what"], row["blocks"]].append(row["remote_bytes"] / row["us"] / 1e3)
    names = {
        "peer write": "writes",
        "peer both": "writes, here as well",
        "peer read": "reads",
    }
    yield "| copies between both GPUs, both directions at once | blocks | GB/s |"
    yield "| --- | --- | --- |"
    for (what, blocks), rates in sorted(found.items(), key=lambda each: each[0][1]):
        yield f"| {names[what]} | {blocks} | {median(rates):.0f} |"


TABLES = {
    "expert_parallel": expert_parallel,
    "peer_rates": peer_rates,
    "units": units,
    "units_one_gpu": lambda: unit_ratios(
        "units_one_gpu", {"flags": "us", "flags, free": "back_us"}
    ),
    "units_one_gpu_before": lambda: unit_ratios("units_one_gpu_before", {"flags": "us"}),
    "room": lambda: room("signal_room"),
    "room_before": lambda: room("signal_room_before"),
    "unit_launches": unit_launches,
    "unit_replays": unit_replays,
    "sweep": sweep,
    "simulated": simulated,
    "phases": phases,
    "compile": compile_time,
    "start": start,
    "gemm": gemm,
    "gemm_before": gemm_before,
    "kernels": layer_kernels,
    "pieces": lambda: peer_layer("pieces"),
    "share": lambda: peer_layer("share"),
    "skew": lambda: peer_layer("skew"),
    "alone": alone,
    "launch": launch,
}


def filled(page: str) -> str:
    """The page with every marked table as the rows have it now."""
    return MARKS.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3], page)


def main() -> None:
    if "--write" in sys.argv:
        for page in PAGES:
            page.write_text(filled(page.read_text()))
        return
    for name, table in TABLES.items():
        print(f"\n{name}\n" + "\n".join(table()))


if __name__ == "__main__":
    main()
