"""Groups and entries: which ops are a graph of their own, and what is launched before what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphc.spec.faults import Faults
from graphc.spec.model import EntrySpec, LayerSpec, OpSpec
from graphc.spec.names import NAME
from graphc.spec.values import holds, listed
from graphc.text.diagnostics import Span, error
from graphc.text.load import Site
from graphc.text.suggest import did_you_mean

STEP = "step"  # the entry of a spec that names none

Groups: TypeAlias = Mapping[str, tuple[list[OpSpec], Site, Span]]


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries that there are at the values at hand; the first is what ``launch`` takes."""

    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # entry -> its groups
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # entry -> those before it

    @property
    def sequence(self) -> tuple[str, ...]:
        """The first entry, behind all that come before it."""
        return tuple(dict.fromkeys(self.before(next(iter(self.groups))))) if self.groups else ()

    def before(self, entry: str) -> tuple[str, ...]:
        ahead = [each for name in self.after.get(entry, ()) for each in self.before(name)]
        return (*ahead, entry)


def groups_of(spec: LayerSpec, faults: Faults) -> Groups:
    """The groups of ops by name; the ops of a spec without groups are one."""
    site = spec.site
    written = {*site.document.data} & {"ops", "groups"}
    if "groups" not in written:
        if "ops" not in written and not faults.found:
            text = "a spec needs a field 'ops', or 'groups'"
            faults.mistake("missing-field", text, site.key)
        return {STEP: (spec.ops, site["ops"], site["ops"].key)}
    if "ops" in written:
        text = "a spec has ops: or groups:, not both"
        hint = "move the ops into a group"
        faults.mistake("bad-group", text, site["ops"].key, hint=hint)
    for name in spec.groups:
        if not NAME.fullmatch(name):
            text = f"'{name}' cannot be a group's name"
            faults.mistake("bad-name", text, site["groups"][name].key)
    return {
        name: (ops, site["groups"][name], site["groups"][name].key)
        for name, ops in spec.groups.items()
    }


def entries_of(
    spec: LayerSpec, groups: Groups, scope: Mapping[str, Any], faults: Faults
) -> Entries:
    """The entries, each with its groups in order; without any, one of all groups."""
    if not spec.entries:
        return Entries({STEP: tuple(groups)})
    found: dict[str, tuple[str, ...]] = {}
    after: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for name, entry in spec.entries.items():
        at = spec.site["entries"][name]
        if not NAME.fullmatch(name):
            faults.mistake("bad-name", f"'{name}' cannot be an entry's name", at.key)
        with faults.collecting():
            of_entry = groups_named(entry, at, groups, scope)
            used |= {*of_entry}
            if holds(entry.if_, scope, at["if"].span):
                found[name] = of_entry
        after[name] = after_of_entry(spec, name, at, faults)
    for name, (_, _, span) in groups.items():
        if name not in used and not faults.found:
            text = f"group '{name}' is in no entry, so its ops never run"
            faults.mistake("bad-group", text, span)
    if not found and not faults.found:
        text = "at these values there is no entry"
        faults.mistake("bad-entry", text, spec.site["entries"].key)
    present = {
        name: tuple(each for each in before if each in found)
        for name, before in after.items()
        if name in found
    }
    check_cycle(spec, present, faults)
    return Entries(found, {} if faults.found else present)


def groups_named(
    entry: EntrySpec, at: Site, groups: Groups, scope: Mapping[str, Any]
) -> tuple[str, ...]:
    names = listed(entry.groups, "groups", scope, at["groups"].span)
    for index, name in enumerate(names):
        where = at["groups"][index].span
        if name not in groups:
            known = ", ".join(groups) or "none"
            hint = did_you_mean(str(name), groups) or f"the groups are {known}"
            raise error("unknown-group", f"there is no group '{name}'", where, hint=hint)
        if name in names[:index]:
            raise error("bad-group", f"group '{name}' is in this entry already", where)
    return tuple(names)


def after_of_entry(spec: LayerSpec, name: str, at: Site, faults: Faults) -> tuple[str, ...]:
    found = []
    for index, other in enumerate(spec.entries[name].after):
        span = at["after"][index].span
        if other not in spec.entries:
            hint = did_you_mean(other, spec.entries)
            faults.mistake("unknown-entry", f"there is no entry '{other}'", span, hint=hint)
        elif other == name:
            faults.mistake("bad-entry", f"entry '{name}' cannot come after itself", span)
        else:
            found.append(other)
    return tuple(found)


def check_cycle(spec: LayerSpec, after: Mapping[str, tuple[str, ...]], faults: Faults) -> None:
    """No entry comes after one that comes after it."""
    done: set[str] = set()
    left = dict(after)
    while ready := [name for name, before in left.items() if {*before} <= done]:
        done |= {*ready}
        for name in ready:
            del left[name]
    for name in left:
        at = spec.site["entries"][name]["after"]
        text = f"entry '{name}' comes after one that comes after it"
        faults.mistake("bad-entry", text, at.span)
        return
