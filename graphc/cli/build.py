"""``graphc compile``: a spec to a plan on disk."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.output import bytes_text, plural, print_json, progress, say
from graphc.cli.request import Request, refuse_plan
from graphc.text.diagnostics import CudaError, UsageError
from graphc.text.suggest import did_you_mean

if TYPE_CHECKING:
    from graphc.plan import Plan, Variant

PASSES = (
    "choose_routes",
    "lower_routes",
    "split_pieces",
    "infer_dependencies",
    "plan_memory",
    "assign_streams",
    "insert_events",
)


def run_compile(
    wanted: Request,
    output: Path | None,
    *,
    arch: str | None,
    cubins: bool,
    dump_after: str | None,
    is_json: bool,
) -> int:
    from graphc import api

    if dump_after == "list":
        if is_json:
            print_json({"passes": list(PASSES)})
        else:
            say("\n".join(PASSES))
        return 0
    refuse_plan(wanted, "compile")
    if arch is not None:
        check_arch(arch)
    dumps = Dumps(dump_after)
    target = output or Path(wanted.path.stem + ".graphc")
    refuse_target(target, wanted.path)
    with progress() as doing:

        def observe(name: str, stage: object) -> None:
            doing(f"compiling {wanted.path}: {name}")
            dumps(name, stage)

        plan = api.compile(
            wanted.path, arch=arch, cubins=cubins, observe=observe, **wanted.options()
        )
    if dump_after is not None and output is None:
        print_dumps(plan, dumps, is_json=is_json)
        return 0
    plan.save(target)
    if is_json:
        print_json({**plan_facts(plan), "file": str(target), "dumps": dumps.texts})
        return 0
    for text in dumps.texts:
        say(text)
    say(f"wrote {target} ({bytes_text(target.stat().st_size)})")
    say(plan_text(plan))
    return 0


def check_arch(arch: str) -> None:
    """Refuse what is no architecture, or none of those that the NVRTC at hand knows."""
    from graphc.gpu import nvrtc

    known: tuple[int, ...] = ()
    with suppress(CudaError):  # without NVRTC a plan can still be made for another machine
        known = nvrtc.architectures()
    found = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if found and (not known or int(found[1]) in known):
        return
    there_are = ", ".join(f"sm_{each}" for each in known)
    raise UsageError(
        f"--arch: '{arch}' is no architecture"
        + (f" that this NVRTC compiles for: there are {there_are}" if known else ", such as sm_90a")
    )


class Dumps:
    """An observer that keeps the text of what one pass made, once for each variant."""

    def __init__(self, wanted: str | None) -> None:
        if wanted is not None and wanted not in PASSES:
            hint = did_you_mean(wanted, PASSES) or f"there are {', '.join(PASSES)}"
            raise UsageError(f"'{wanted}' is no pass: {hint}")
        self.wanted = wanted
        self.texts: list[str] = []

    def __call__(self, name: str, stage: object) -> None:
        if name == self.wanted:
            from graphc.draw.dump import dump_any

            self.texts.append(dump_any(stage))


def refuse_target(target: Path, source: Path) -> None:
    if target.is_dir():
        raise UsageError(f"'{target}' is a folder: name the plan's file")
    if target.exists() and target.samefile(source):
        raise UsageError(f"'{target}' is the spec itself: name another file with -o")


def print_dumps(plan: Plan, dumps: Dumps, *, is_json: bool) -> None:
    if is_json:
        print_json({**plan_facts(plan), "file": None, "dumps": dumps.texts})
        return
    titles = [
        schedule_title(variant, entry) for variant in plan.variants for entry in variant.schedules
    ]
    for title, text in zip(titles, dumps.texts, strict=len(titles) == len(dumps.texts)):
        if len(titles) > 1:
            say(f"=== {title}")
        say(text)


def plan_text(plan: Plan) -> str:
    params = ", ".join(f"{name} {value}" for name, value in plan.params.items())
    lines = [f"{plan.name}: {params}" if params else plan.name]
    lines += [f"  {variant_title(each)}: {variant_text(each)}" for each in plan.variants]
    built = sum(bool(image.cubins) for image in plan.images.values())
    how = f"{built} compiled for {plan.arch}" if built else f"rendered for {plan.arch}"
    lines.append(f"  {plural(len(plan.images), 'kernel')}, {how}")
    return "\n".join(lines)


def variant_title(variant: Variant) -> str:
    """The routes in few words, the same for all layers.

    >>> from types import SimpleNamespace as Fake
    >>> variant_title(Fake(routes={"activations": "p2p", "results": "p2p"}))
    'route p2p'
    """
    from graphc.draw.swimlanes import hue_key

    by_route: dict[str, dict[str, None]] = {}
    for transfer, route in variant.routes.items():
        by_route.setdefault(route, {})[hue_key(transfer)] = None
    if not by_route:
        return "no transfers"
    if len(by_route) == 1:
        return f"route {next(iter(by_route))}"
    most = max(by_route, key=lambda route: len(by_route[route]))
    others = (f"{', '.join(names)} {route}" for route, names in by_route.items() if route != most)
    return f"route {most} ({'; '.join(others)})"


def schedule_title(variant: Variant, entry: str) -> str:
    """The routes, and the entry where there are several."""
    title = variant_title(variant)
    return f"{title}, entry {entry}" if variant.others else title


def variant_text(variant: Variant) -> str:
    from graphc.draw.resources import resources

    parts = []
    for entry, schedule in variant.schedules.items():
        used = resources(schedule)
        name = f"{entry}: " if variant.others else ""
        parts.append(
            f"{name}{plural(used.ops, 'op')}, {plural(used.streams, 'stream')}, "
            f"{plural(used.waits, 'wait')}"
        )
    nbytes = resources(variant.schedule).nbytes
    memory = ", ".join(memory_texts(nbytes))
    return f"{'; '.join(parts)}; {memory}; {plural(variant.proof.pairs, 'pair')} proven"


def memory_texts(nbytes: Mapping[str, int]) -> Iterator[str]:
    """Bytes by device; where several need as many, they are told together.

    >>> list(memory_texts({"gpu0": 512, "gpu1": 512, "gpu2": 512, "host": 8}))
    ['512 B on each of gpu0 to gpu2', '8 B on host']
    >>> list(memory_texts({"one": 512, "two": 512}))
    ['512 B on one', '512 B on two']
    """
    for count, places in groupby(nbytes, key=nbytes.__getitem__):
        names = list(places)
        if len(names) > 2:
            yield f"{bytes_text(count)} on each of {names[0]} to {names[-1]}"
        else:
            yield from (f"{bytes_text(count)} on {name}" for name in names)


def plan_facts(plan: Plan) -> dict[str, Any]:
    from dataclasses import asdict

    from graphc.draw.resources import resources

    return {
        "name": plan.name,
        "params": dict(plan.params),
        "arch": plan.arch,
        "kernels": list(plan.images),
        "variants": [
            {
                "routes": dict(each.routes),
                "requires": [f"{r.need}: {r.source} to {r.target}" for r in each.requires],
                "resources": asdict(resources(each.schedule)),
                "entries": {
                    entry: asdict(resources(schedule)) for entry, schedule in each.schedules.items()
                },
                "pairs": each.proof.pairs,
            }
            for each in plan.variants
        ],
    }
