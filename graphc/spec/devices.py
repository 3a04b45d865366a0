"""The devices of a spec, and which of them a word means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphc.ir import HOST, MAPPED
from graphc.spec.faults import Faults
from graphc.spec.model import HandSpec, LayerSpec
from graphc.spec.names import NAME
from graphc.text.diagnostics import Note, Span, SpecError, error
from graphc.text.expr import evaluate_word
from graphc.text.suggest import did_you_mean


def device_names(spec: LayerSpec | HandSpec) -> tuple[str, ...]:
    return tuple(spec.devices) if isinstance(spec.devices, list) else ("gpu0",)


def check_devices(spec: LayerSpec | HandSpec, faults: Faults) -> None:
    if not isinstance(spec.devices, list):
        return
    for index, name in enumerate(spec.devices):
        at = spec.site["devices"][index].span
        if not NAME.fullmatch(name) or name in (HOST, MAPPED):
            faults.mistake("bad-name", f"'{name}' cannot be a device's name", at)
        elif name in spec.devices[:index]:
            first = spec.site["devices"][spec.devices.index(name)].span
            faults.mistake(
                "duplicate-name", f"a second device '{name}'", at, Note("first here", first)
            )


def device_named(word: str, scope: Mapping[str, Any], devices: Sequence[str], span: Span) -> str:
    """The device that a word stands for."""
    return known_device(evaluate_word(word, scope, span), devices, span)


def known_device(name: Any, devices: Sequence[str], span: Span) -> str:
    if name not in devices:
        hint = did_you_mean(str(name), devices) or f"the devices are {', '.join(devices)}"
        raise error("unknown-device", f"unknown device '{name}'", span, hint=hint)
    return str(name)


def placed_by_rank(name: str, span: Span) -> SpecError:
    text = f"'{name}' is on the device of its rank: it has no device of its own"
    return error("bad-rank", text, span, hint="ranks are placed by devices: {ranks: ...}")
