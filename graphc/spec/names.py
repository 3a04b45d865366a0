"""The names in a file: how one looks, and which there are, those of faulty entries included."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Any

from graphc.spec.model import HeadSpec, LayerSpec
from graphc.text.expr import RESERVED

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def why_no_index(name: str, scope: Container[str]) -> str | None:
    """Why the number of an iteration or of a rank cannot be called so; None if it can."""
    if name in scope:
        return "it is in use"
    return "it is no name" if name in RESERVED or not name.isidentifier() else None


def broken_names(spec: HeadSpec) -> set[str]:
    """Names that the file declares, but whose declarations could not be used."""
    data = spec.site.document.data
    kept = {*spec.params, *spec.let, *spec.buffers}
    names = {*raw_names(data, "params", "let", "buffers")} - kept
    if isinstance(spec, LayerSpec):
        names |= {*raw_names(data, "cuts")} - {*spec.cuts}
        names |= {f"{each}.count" for each in {*raw_names(data, "cuts")} - {*spec.cuts}}
    for section in {*data} - {*type(spec).model_fields}:  # a section under a wrong name
        names |= {*raw_names(data, section)}
    if not isinstance(data.get("devices"), list):
        names |= set(devices_named(data))
    if spec.faults:
        names |= set(written_ops(data))
    return names


def raw_names(data: Any, *sections: str) -> Iterable[str]:
    """The names that a file declares, faulty entries included."""
    for section in sections:
        entries = data.get(section) if isinstance(data, dict) else None
        yield from entries if isinstance(entries, dict) else ()


def written_ops(data: Any) -> Iterable[str]:
    """The ops that a file names, in whatever group."""
    yield from op_names(data.get("ops"))
    groups = data.get("groups")
    for each in groups.values() if isinstance(groups, dict) else ():
        yield from op_names(each)


def op_names(ops: Any) -> Iterable[str]:
    for each in ops if isinstance(ops, list) else ():
        if isinstance(each, dict):
            if isinstance(each.get("name"), str):
                yield each["name"]
            yield from op_names(each.get("body"))


def devices_named(data: Any) -> Iterable[str]:
    if isinstance(data, dict):
        if isinstance(data.get("device"), str):
            yield data["device"]
        data = list(data.values())
    for each in data if isinstance(data, list) else ():
        yield from devices_named(each)
