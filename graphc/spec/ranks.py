"""The ranks of an SPMD spec: how many there are, where each one is, and what it may name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphc.spec.expand import Context, Declared, Rank
from graphc.spec.faults import Faults
from graphc.spec.model import LayerSpec, RankDevicesSpec
from graphc.spec.names import why_no_index
from graphc.text.diagnostics import error
from graphc.text.expr import evaluate_count

MOST_RANKS = 64


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks of a spec; none of one that has no ``ranks``."""

    all: tuple[Rank, ...] = ()

    @property
    def placed(self) -> tuple[str, ...]:
        """Rank -> device."""
        return tuple(each.device for each in self.all)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices on which ranks are, by their numbers."""
        return tuple(sorted({*self.placed}, key=lambda name: int(name.removeprefix("gpu"))))

    def together(self) -> tuple[int, int] | None:
        """The first two ranks that share a device, if any do."""
        first: dict[str, int] = {}
        for rank, device in enumerate(self.placed):
            other = first.setdefault(device, rank)
            if other != rank:
                return other, rank
        return None

    def scope(self, rank: Rank | None, scope: Mapping[str, Any]) -> Mapping[str, Any]:
        return scope if rank is None else {**scope, rank.name: rank.number}

    def names(
        self, spec: LayerSpec, scope: Mapping[str, Any]
    ) -> tuple[dict[str, Declared | None], ...]:
        """The spec's own buffers, for each rank."""
        found = []
        for rank in self.all or (None,):
            names: dict[str, Declared | None] = {}
            prefix, known = rank.prefix if rank else "", self.scope(rank, scope)
            for name, each in spec.buffers.items():
                at = spec.site["buffers"][name]
                names[name] = Declared(name, each, at, prefix, 0, known, names, rank)
            found.append(names)
        return tuple(found)

    def contexts(
        self,
        spec: LayerSpec,
        names: Sequence[dict[str, Declared | None]],
        scope: Mapping[str, Any],
        root: Mapping[str, Any],
    ) -> Iterator[Context]:
        """Where the ops of each rank stand."""
        folder = Path(spec.site.document.file).parent
        for rank, own in zip(self.all or (None,), names, strict=True):
            yield Context(
                self.scope(rank, scope),
                own,
                self.scope(rank, root),
                rank.prefix if rank else "",
                folder=folder,
                rank=rank,
                peers=tuple(names) if rank else (),
            )


def ranks_of(spec: LayerSpec, scope: Mapping[str, Any], faults: Faults) -> Ranks:
    """The ranks, and the device of each."""
    if spec.ranks is None:
        if isinstance(spec.devices, RankDevicesSpec):
            text = "devices are by ranks, but this spec has no ranks"
            hint = "write ranks: {count: n}, or a list of devices"
            faults.mistake("bad-rank", text, spec.site["devices"].key, hint=hint)
        return Ranks()
    at = spec.site["ranks"]
    name = spec.ranks.name
    if (why := why_no_index(name, scope)) is not None:
        text = f"'{name}' cannot be what a rank is called: {why}"
        faults.mistake("bad-name", text, at["name"].span)
    count = 1
    with faults.collecting():
        given = int(evaluate_count(spec.ranks.count, scope, at["count"].span))
        count = min(max(given, 1), MOST_RANKS)  # the rest is looked at with it
        if given != count:
            faults.moot |= {"wrong-shape"}  # extents go by the number that was asked for
            text = f"there are 1 to {MOST_RANKS} ranks, not {given}"
            raise error("bad-rank", text, at["count"].span)
    if not isinstance(spec.devices, RankDevicesSpec):
        if isinstance(spec.site.document.data.get("devices"), list):
            text = "this spec has ranks: it says on which device each one is"
            hint = f"write devices: {{ranks: {name}}}"
            faults.mistake("bad-rank", text, spec.site["devices"].key, hint=hint)
        return Ranks(tuple(rank_of(number, name, 0) for number in range(count)))
    place = spec.site["devices"]["ranks"].span
    devices = [0] * count
    with faults.collecting():
        for number in range(count):
            device = int(evaluate_count(spec.devices.ranks, {**scope, name: number}, place))
            if device >= MOST_RANKS:
                text = f"rank {number} would be on device {device}: there are at most {MOST_RANKS}"
                raise error("bad-rank", text, place)
            devices[number] = device
    return Ranks(tuple(rank_of(number, name, each) for number, each in enumerate(devices)))


def rank_of(number: int, name: str, device: int) -> Rank:
    return Rank(number, name, f"{name}.{number}/", f"gpu{device}")
