"""Spec -> scope: the values of params, derived values, relations, and the schedule in force.

A value comes from the call or the command line, else from a schedule file, else from the preset,
else it is the default. Names with a dot (``schedule.sums.pieces``, ``sums.pieces``) and the
schedule's own names (``emit``) override the schedule section value by value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphc.spec.faults import Faults
from graphc.spec.model import (
    GLOBALS,
    HandSpec,
    HeadSpec,
    LayerSpec,
    ParamSpec,
    ScheduleFileSpec,
    ScheduleSpec,
    repair_schedule,
)
from graphc.text.diagnostics import Note, Span, error
from graphc.text.explain import examine_with_repairs
from graphc.text.expr import (
    RESERVED,
    Scaled,
    evaluate,
    evaluate_number,
    evaluate_text,
    evaluate_word,
)
from graphc.text.load import Document, PathInFile, Place, Site, kind, read_yaml
from graphc.text.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it came from."""

    value: Any
    span: Span
    is_expression: bool = False  # of a preset: text that begins with '=', over the params above

    def in_scope(self, scope: Mapping[str, Any]) -> Given:
        if not self.is_expression:
            return self
        return Given(evaluate_word(self.value, scope, self.span), self.span)


@dataclass(frozen=True, slots=True)
class Values:
    """What expressions may name, what was set, and the param that is the count."""

    scope: dict[str, Any]
    params: dict[str, Any]
    count_name: str | None = None

    @property
    def capacity(self) -> int | None:
        return None if self.count_name is None else int(self.params[self.count_name])


def set_by(name: str, value: Any, origin: str) -> Span:
    """The place of a value that stands in no file: ``origin`` with its ``{name}`` and ``{value}``.

    >>> str(set_by("wide", True, "--set {name}={value}"))
    '--set wide=true'
    """
    return Span(origin.format(name=name, value=shown(value)), 0, 0, 0)


def shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(each) for each in value)}]"
    return str(value)


def is_schedule_name(name: str, spec: HeadSpec) -> bool:
    return name not in spec.params and ("." in name or name in GLOBALS)


def values_of(
    spec: HeadSpec,
    given: Mapping[str, Given],
    preset: str | None,
    faults: Faults,
) -> Values:
    """Set the params, compute what is derived from them, check what is required of them."""
    check_presets(spec, faults)
    chosen = chosen_values(spec, given, preset, faults)
    found_before = len(faults.found)
    params: dict[str, Any] = {}
    scope: dict[str, Any] = {}
    for name, param in spec.params.items():
        at = spec.site["params"][name]
        check_name(name, "a param", at, faults)
        set_to = default = Given(param.default, at["default"].span)
        with faults.collecting():
            set_to = chosen.get(name, default).in_scope(scope)
        params[name] = checked_type(name, param, set_to, at, faults)
        scope[name] = params[name]
    counts = [name for name, param in spec.params.items() if param.count]
    for name in counts:
        span = chosen[name].span if name in chosen else spec.site["params"][name]["default"].span
        check_count(name, counts, spec, params, span, faults)
        if isinstance(params[name], int):
            scope[name] = Scaled(params[name], 1)
    are_as_asked = len(faults.found) == found_before
    for name, param in spec.params.items():
        at = spec.site["params"][name]
        span = chosen[name].span if name in chosen else at["default"].span
        if not check_limits(name, param, params[name], span, scope, at, faults):
            # What is wrong is said; the rest is looked at with the default, or without the name.
            are_as_asked = False
            if params[name] == param.default:
                del scope[name]
                faults.broken |= {name}
                continue
            params[name] = param.default
            scope[name] = Scaled(param.default) if name in counts else param.default
    derive(spec, scope, faults)
    if are_as_asked:  # a default in place of what was asked may well not suit the other values
        check_required(spec, scope, faults)
    numbers = [name for name in counts if isinstance(params[name], int)]
    return Values(scope, params, numbers[0] if numbers else None)


def check_presets(spec: HeadSpec, faults: Faults) -> None:
    for preset, entries in spec.presets.items():
        for name in entries:
            if name not in spec.params:
                at = spec.site["presets"][preset][name]
                unknown_param(name, spec, at.key, faults)


def chosen_values(
    spec: HeadSpec, given: Mapping[str, Given], preset: str | None, faults: Faults
) -> dict[str, Given]:
    chosen: dict[str, Given] = {}
    if preset is not None and preset in spec.presets:
        at = spec.site["presets"][preset]
        for name, value in spec.presets[preset].items():
            is_expression = isinstance(value, str) and value.startswith("=")
            chosen[name] = Given(value, at[name].span, is_expression)
    elif preset is not None:
        known = ", ".join(spec.presets) or "none"
        hint = did_you_mean(preset, spec.presets) or f"the presets are: {known}"
        span = Span(f"--preset {preset}", 0, 0, 0)
        faults.mistake("unknown-preset", f"there is no preset '{preset}'", span, hint=hint)
    for name, each in given.items():
        if name in spec.params:
            chosen[name] = each
        else:
            unknown_param(name, spec, each.span, faults)
    return chosen


def unknown_param(name: str, spec: HeadSpec, span: Span, faults: Faults) -> None:
    known, why = (*spec.params, *GLOBALS), "presets set no others"
    if isinstance(spec, HandSpec):
        known, why = tuple(spec.params), "a hand-written schedule has no such values"
    text = f"'{name}' is no param of '{spec.name}'"
    if is_schedule_name(name, spec):
        text, known = f"{text}: {why}", ()
    hint = did_you_mean(name, known) or f"the params are: {', '.join(spec.params) or 'none'}"
    faults.mistake("unknown-param", text, span, hint=hint)


def check_name(name: str, what: str, at: Site, faults: Faults) -> None:
    if name in RESERVED or not name.isidentifier():
        faults.mistake("bad-name", f"'{name}' cannot be {what}'s name", at.key)


def checked_type(name: str, param: ParamSpec, given: Given, at: Site, faults: Faults) -> Any:
    value, default = given.value, param.default
    if isinstance(value, int) and isinstance(default, float) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not type(default):
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        faults.mistake(
            "bad-value",
            f"'{name}' is {wanted[type(default)]}, not {kind(value)}",
            given.span,
            Note("its default is here", at["default"].span),
        )
        return default
    if param.choices and value not in param.choices:
        choices = ", ".join(shown(each) for each in param.choices)
        hint = did_you_mean(str(value), [str(each) for each in param.choices])
        text = f"'{name}' is one of {choices}, not {shown(value) or repr(value)}"
        faults.mistake("bad-value", text, given.span, hint=hint)
        return default
    return value


def check_count(
    name: str,
    counts: list[str],
    spec: HeadSpec,
    params: dict[str, Any],
    span: Span,
    faults: Faults,
) -> None:
    at = spec.site["params"][name]["count"]
    if name != counts[0]:
        first = spec.site["params"][counts[0]]["count"].key
        text = f"'{name}' cannot be the count: '{counts[0]}' is"
        faults.mistake("bad-count", text, at.key, Note("the count is set here", first))
    value = params[name]
    if isinstance(value, bool) or not isinstance(value, int):
        faults.mistake("bad-count", f"the count '{name}' is a whole number from 0 on", at.key)
    elif value < 0 and not has_lower_limit(spec.params[name]):
        text = f"'{name}' is {value}, but must be at least 0: it is the count"
        faults.mistake("bad-value", text, span, Note("because of this", at.key))
        params[name] = max(0, int(spec.params[name].default))  # the rest is looked at with it


def has_lower_limit(param: ParamSpec) -> bool:
    """Whether its own limit says already that it is not below zero."""
    return isinstance(param.min, int | float) and param.min >= 0


def check_limits(
    name: str,
    param: ParamSpec,
    value: Any,
    span: Span,
    scope: Mapping[str, Any],
    at: Site,
    faults: Faults,
) -> bool:
    before = len(faults.found)
    limits: tuple[tuple[str, Any, str, Callable[[Any, Any], bool]], ...] = (
        ("min", param.min, "at least", operator.ge),
        ("max", param.max, "at most", operator.le),
        ("multiple_of", param.multiple_of, "a multiple of", divides),
    )
    for field, limit, words, is_kept in limits:
        if limit is None:
            continue
        with faults.collecting():
            bound = evaluate_number(limit, scope, at[field].span)
            if isinstance(value, str | bool):
                raise error(
                    "bad-value", f"'{name}' is no number: it has no '{field}'", at[field].key
                )
            if not is_kept(value, bound):
                text = f"'{name}' is {value}, but must be {words} {bound}"
                raise error(
                    "bad-value", text, span, notes=[Note("because of this", at[field].span)]
                )
    return len(faults.found) == before


def divides(value: Any, step: Any) -> bool:
    return bool(step > 0 and value % step == 0)


def derive(spec: HeadSpec, scope: dict[str, Any], faults: Faults) -> None:
    """Derived values in file order: each may name those before it."""
    for name, text in spec.let.items():
        at = spec.site["let"][name]
        check_name(name, "a derived value", at, faults)
        if name in spec.params:
            first = Note("the param is here", spec.site["params"][name].key)
            faults.mistake("duplicate-name", f"'{name}' is a param already", at.key, first)
            continue
        with faults.collecting():
            if isinstance(text, str):
                scope[name] = evaluate(text.removeprefix("="), scope, at.span)
            else:
                scope[name] = text
        if name not in scope:
            faults.broken |= {name}


def check_required(spec: HeadSpec, scope: Mapping[str, Any], faults: Faults) -> None:
    for index, each in enumerate(spec.require):
        at = spec.site["require"][index]
        with faults.collecting():
            if not holds(each.that, scope, at["that"].span):
                message = evaluate_text(each.else_, scope, at["else"].span)
                raise error("requirement", message, at["that"].span)


def holds(condition: bool | str, scope: Mapping[str, Any], span: Span) -> bool:
    """Whether an ``if`` or a ``that`` is true."""
    if isinstance(condition, bool):
        return condition
    return bool(evaluate(condition.removeprefix("="), scope, span))


def listed(names: list[str] | str, what: str, scope: Mapping[str, Any], span: Span) -> list[Any]:
    """The ops or groups (``what``) of a list, or of an expression that gives one."""
    found = evaluate(names.removeprefix("="), scope, span) if isinstance(names, str) else names
    if not isinstance(found, list):
        raise error("bad-value", f"expected a list of {what}, found {kind(found)}", span)
    return found


@dataclass(frozen=True, slots=True)
class ScheduleInForce:
    """The schedule section, or the file in its place, with single values overridden."""

    spec: ScheduleSpec
    site: Site


def read_schedule_file(
    path: str | Path, faults: Faults
) -> tuple[ScheduleInForce, dict[str, Given]]:
    """A schedule from a file of its own, and the params that it sets."""
    document = read_yaml(path)
    schedule, found = examine_with_repairs(ScheduleFileSpec, document, repair_schedule)
    faults.add(*found)
    if schedule is None:
        faults.check()
        raise AssertionError("a file of which nothing can be used has faults")
    site = document.root
    params = {
        name: Given(value, site["params"][name].span) for name, value in schedule.params.items()
    }
    return ScheduleInForce(schedule, site), params


def schedule_in_force(
    spec: LayerSpec, base: ScheduleInForce | None, given: Mapping[str, Given], faults: Faults
) -> ScheduleInForce:
    """The schedule with the overrides laid over it."""
    base = base or ScheduleInForce(spec.schedule, spec.site["schedule"])
    if not given:
        return base
    section = base.site.path
    data = entry(base.site.document.data, section)
    places = shifted(base.site.document.places, section)
    for name, each in given.items():
        overlay(data, places, tuple(name.removeprefix("schedule.").split(".")), each)
    document = Document(base.site.document.file, data, places)
    schedule, found = examine_with_repairs(type(base.spec), document, repair_schedule)
    faults.add(*found)
    return ScheduleInForce(schedule or base.spec, document.root)


def entry(data: Any, path: PathInFile) -> dict[str, Any]:
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return deepcopy(data) if isinstance(data, dict) else {}


def shifted(places: Mapping[PathInFile, Place], section: PathInFile) -> dict[PathInFile, Place]:
    depth = len(section)
    return {path[depth:]: place for path, place in places.items() if path[:depth] == section}


def overlay(
    data: dict[str, Any], places: dict[PathInFile, Place], path: PathInFile, given: Given
) -> None:
    for depth in range(1, len(path)):
        inner = data.get(str(path[depth - 1]))
        if not isinstance(inner, dict):
            inner = data[str(path[depth - 1])] = {}
        places.setdefault(path[:depth], Place(given.span, given.span))
        data = inner
    data[str(path[-1])] = given.value
    for each in [known for known in places if known[: len(path)] == path]:
        del places[each]
    places[path] = Place(given.span, given.span)
