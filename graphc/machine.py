"""What a machine can do: its GPUs, and which needs of routes hold between two of them.

Logical devices of a plan are placed on GPUs; several may share one. On one GPU every need of a
route holds by itself; between two, only what arrived in a test with data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index

from graphc.gpu.probe import PeerFacts
from graphc.gpu.protocol import DeviceFacts
from graphc.ir import Unit
from graphc.text.diagnostics import UsageError
from graphc.text.suggest import did_you_mean

SAME_GPU = "same_gpu"
WAYS = {"peer_copy": "copy engine", "peer_read": "kernel reads", "peer_write": "kernel writes"}


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs, and ``peer(source, target)``: what bytes do from one to the other."""

    gpus: tuple[DeviceFacts, ...]
    peer: Callable[[int, int], PeerFacts]

    def why_not(self, need: str, source: int, target: int) -> str | None:
        """Why a need of a route does not hold between two GPUs, or None if it holds."""
        if source == target:
            return None
        if need == SAME_GPU:
            return f"they are GPU {source} and GPU {target}, not one"
        facts = self.peer(source, target)
        holds = {"peer_copy": facts.copies, "peer_read": facts.reads, "peer_write": facts.writes}
        if holds[need]:
            return None
        because = facts.why or f"wrong bytes arrived by {WAYS[need]}"
        return f"GPU {source} to GPU {target} by {WAYS[need]}: {because}"


def place_devices(
    names: Sequence[str],
    gpu_count: int | None,
    devices: Mapping[str, int] | Sequence[int] | None = None,
) -> dict[str, int]:
    """Logical device -> GPU: as asked; else one each, or all on GPU 0 where there are too few.

    ``gpu_count`` is None where GPUs are only imagined: any number of them will do.

    >>> place_devices(["primary", "peer"], 1)
    {'primary': 0, 'peer': 0}
    """
    if devices is None:
        enough = gpu_count is None or gpu_count >= len(names)
        return {name: at if enough else 0 for at, name in enumerate(names)}
    placed = {
        name: ordinal_of(name, value) for name, value in named_devices(names, devices).items()
    }
    for name, ordinal in placed.items():
        if gpu_count is not None and ordinal >= gpu_count:
            raise UsageError(
                f"device '{name}' is placed on GPU {ordinal}, but this machine has "
                f"{gpu_count} (0 to {gpu_count - 1})"
            )
    return placed


def ordinal_of(name: str, value: object) -> int:
    try:
        ordinal = -1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        ordinal = -1
    if ordinal < 0:
        raise UsageError(
            f"device '{name}': expected the number of a GPU, from 0 on, found {value!r}"
        )
    return ordinal


def named_devices(
    names: Sequence[str], devices: Mapping[str, int] | Sequence[int]
) -> dict[str, int]:
    if not isinstance(devices, Mapping):
        if isinstance(devices, str) or not isinstance(devices, Sequence):
            raise UsageError(
                "devices: expected the GPU of each device, such as {'primary': 0, 'peer': 1}, or "
                f"a list of them, found {devices!r}"
            )
        if len(devices) != len(names):
            raise UsageError(
                f"the plan has {len(names)} devices ({', '.join(names)}), "
                f"but {len(devices)} GPUs were given"
            )
        return dict(zip(names, devices, strict=True))
    for name in devices:
        if name not in names:
            hint = did_you_mean(name, names)
            raise UsageError(f"no device is named '{name}'" + (f": {hint}" if hint else ""))
    missing = [name for name in names if name not in devices]
    if missing:
        raise UsageError(f"no GPU was given for device '{missing[0]}'")
    return {name: devices[name] for name in names}


def check_apart(units: Iterable[Unit], placed: Mapping[str, int], gpu_count: int) -> None:
    """Refuse units that share a GPU: one could wait there for the other, which gets no turn."""
    owners: dict[int, Unit] = {}
    for unit in units:
        for device in unit.devices:
            other = owners.setdefault(placed[device], unit)
            if other is not unit:
                raise UsageError(
                    f"units '{other.name}' and '{unit.name}' are both placed on GPU "
                    f"{placed[device]}, where they could wait for each other forever: place their "
                    f"devices on GPUs of their own (this machine has {gpu_count}), or compile the "
                    "plan with 'units: one'"
                )
