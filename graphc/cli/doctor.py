"""``graphc doctor``: what the machine can do, tested."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphc import __version__
from graphc.cli.output import bytes_text, columns, print_json, progress, say

if TYPE_CHECKING:
    from graphc.gpu.probe import DoctorFacts, PeerFacts


def run_doctor(*, is_json: bool) -> int:
    from graphc.gpu.probe import doctor_facts

    with progress() as doing:
        doing("testing the machine: memory, peers, links")
        facts = doctor_facts()
    if is_json:
        print_json(json_facts(facts))
    else:
        say("\n".join(lines(facts)))
    return 0


def json_facts(facts: DoctorFacts) -> dict[str, Any]:
    return {
        "graphc": __version__,
        "python": platform.python_version(),
        **asdict(facts),
        "missing": list(facts.missing),
        "can": abilities(facts),
    }


def abilities(facts: DoctorFacts) -> dict[str, bool]:
    """What works here."""
    return {
        "check": True,
        "run_reference": True,
        "compile_kernels": facts.nvrtc is not None,
        "run_cuda": bool(facts.gpus) and facts.nvrtc is not None,
        "peer": any(each.copies for each in facts.peers),
    }


def lines(facts: DoctorFacts) -> list[str]:
    found = [
        f"graphc {__version__}, Python {platform.python_version()}, {platform.system()}",
        f"driver: {'CUDA ' + facts.driver if facts.driver else 'none'}",
        f"NVRTC:  {facts.nvrtc or 'none'}",
        f"GPUs:   {len(facts.gpus) or 'none'}",
    ]
    for gpu, node in zip(facts.gpus, facts.numa_nodes, strict=True):
        major, minor = divmod(gpu.capability, 10)
        near = "" if node is None else f", NUMA node {node}"
        found.append(
            f"  GPU {gpu.ordinal}: {gpu.name}, capability {major}.{minor}, {gpu.sms} SMs, "
            f"{bytes_text(gpu.nbytes)}{near}"
        )
    found += peer_lines(facts)
    if facts.rates:
        found.append("link rates, by copy engines:")
        rows = [(f"  {each.link}", f"{each.gb_per_s:.1f} GB/s") for each in facts.rates]
        found.append(columns([tuple(row) for row in rows]))
    if facts.missing:
        found.append("missing:")
        found += [f"  {each}" for each in facts.missing]
    return found + verdict(facts)


def peer_lines(facts: DoctorFacts) -> list[str]:
    if not facts.peers:
        return []
    refused = " (GRAPHC_NO_P2P is set: refused)" if os.environ.get("GRAPHC_NO_P2P") else ""
    rows = [("  from -> to", "driver says", "copy", "read", "write", "")]
    rows += [peer_row(each) for each in facts.peers]
    return [f"peer access, tested with data{refused}:", columns(rows)]


def peer_row(peer: PeerFacts) -> tuple[str, str, str, str, str, str]:
    results = ("ok" if each else "no" for each in (peer.copies, peer.reads, peer.writes))
    copies, reads, writes = results
    says = "yes" if peer.says else "no"
    return f"  GPU {peer.source} -> GPU {peer.target}", says, copies, reads, writes, peer.why


def verdict(facts: DoctorFacts) -> list[str]:
    can = abilities(facts)
    works = ["check, show and prove specs", "run plans on the reference backend"]
    works += ["compile kernels"] if can["compile_kernels"] else []
    works += ["run plans on the GPU"] if can["run_cuda"] else []
    works += ["move bytes between GPUs directly"] if can["peer"] else []
    return ["works here: " + "; ".join(works)]
