"""``graphc calibrate``: a profile of the machine at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.output import columns, note, print_json, progress, say, write_text
from graphc.text.write import check_place

if TYPE_CHECKING:
    from graphc.calibrate.measure import Figures


def run_calibrate(out: Path, *, name: str, figures: Path | None, is_json: bool) -> int:
    from graphc.calibrate.fit import as_text
    from graphc.calibrate.run import calibrate
    from graphc.profiles import load_profile

    check_place(out)
    check_place(figures)
    kept: list[Figures] = []
    with progress() as doing:
        doing("measuring")
        found = calibrate(name, kept=kept.append)
    if figures is not None:
        write_text(figures, json.dumps(asdict(kept[0]), indent=1))
    write_text(out, as_text(found))
    load_profile(out)
    if is_json:
        print_json(found)
        return 0
    tell(found)
    note(f"wrote {out}")
    return 0


def tell(found: Mapping[str, Any]) -> None:
    host, peer, over = found["host"], found["peer"], found["overhead"]
    rows = [
        ("what", "measured"),
        ("its own memory", f"{found['memory']['gb_s']:.0f} GB/s"),
        ("arithmetic, f16", f"{found['arithmetic']['tflops']['f16']:.0f} Tflop/s"),
        ("to the host", rates(host["to_host_gb_s"])),
        ("from the host", rates(host["from_host_gb_s"])),
        ("both ways of one GPU, each", rates(host["both_ways_gb_s"])),
        ("all GPUs both ways, each", rates(host["all_gb_s"])),
    ]
    if peer is not None:
        rows.append(("to a peer", rates(peer["copy_gb_s"])))
        rows.append(("both ways, each", rates(peer["both_ways_gb_s"])))
    rows += [
        ("the shortest kernel", f"{over['kernel_us']:.1f} us"),
        ("a step to another GPU", f"{over['across_gpus_us']:.1f} us"),
        ("a launch, of the host", f"{over['launch_us']:.1f} us"),
    ]
    say(columns(rows))


def rates(value: float | list[float]) -> str:
    """
    >>> rates(55.2), rates([50.4, 55.2])
    ('55.2 GB/s', '50.4, 55.2 GB/s')
    """
    found = value if isinstance(value, list) else [value]
    return f"{', '.join(f'{each:g}' for each in found)} GB/s"
