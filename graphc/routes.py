"""Routes as data: how a transfer travels, from files of ``specs/routes`` and of the user.

A route names what it needs of a machine, its staging buffers and its steps. Its expressions see
``source`` and ``target`` (with ``.dtype``), ``wire`` (the wire dtype) and each staging buffer: null
where its own ``when`` was false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from graphc.plan import Need
from graphc.text.diagnostics import Diagnostic, Span, SpecError, error
from graphc.text.explain import Condition, Word, Written, examine, fault
from graphc.text.expr import Record, check_expression, evaluate, evaluate_word
from graphc.text.load import Document, Site, kind, read_yaml
from graphc.text.suggest import did_you_mean

ENDS = ("source", "target")


def as_needs(value: object) -> object:
    if not isinstance(value, list):
        raise fault(f"expected a list, found {kind(value)}")
    known = [each.value for each in Need]
    for each in value:
        if each not in known:
            hint = did_you_mean(str(each), known) or f"a route can require {', '.join(known)}"
            raise fault(f"{kind(each)} is nothing that a route can require", hint=hint)
    return [Need(each) for each in value]


def as_slots(value: object) -> object:
    if value == "all" or (type(value) is int and value >= 1):
        return value
    raise fault(f"expected all, or a number of slots from 1 on, found {kind(value)}")


class StagingSpec(Written):
    """A buffer on the way."""

    memory: Literal["device", "mapped"]
    at: Literal["source", "target"] | None = None  # whose device; not for mapped memory
    dtype: Word
    slots: Annotated[Literal["all"] | int, BeforeValidator(as_slots)] = "all"  # or of a ring
    when: Condition = True

    @model_validator(mode="after")
    def has_a_place(self) -> Self:
        if (self.memory == "device") != (self.at is not None):
            needs = "needs at: source or target" if self.memory == "device" else "has no 'at'"
            raise fault(f"staging in {self.memory} memory {needs}")
        return self


class StepSpec(Written):
    """A copy by a copy engine, or a kernel, on one of the two devices."""

    name: str
    on: Literal["source", "target"]
    copy_: list[Word] | None = Field(default=None, alias="copy", min_length=2, max_length=2)
    kernel: str | None = None
    args: dict[str, Word] = Field(default={})
    when: Condition = True

    @model_validator(mode="after")
    def does_one_thing(self) -> Self:
        if (self.copy_ is None) == (self.kernel is None):
            raise fault("a step has either copy: [from, to] or kernel: and args:")
        return self

    @property
    def arguments(self) -> dict[str, str]:
        """Argument -> what is given for it; a copy's are ``source`` and ``target``."""
        return dict(zip(ENDS, self.copy_, strict=True)) if self.copy_ else dict(self.args)


@dataclass(frozen=True, slots=True)
class Traveller:
    """A buffer as a route's expressions see it."""

    name: str
    dtype: str


class RouteSpec(Written):
    """One route."""

    graphc_route: Literal[1]
    name: str
    doc: str
    requires: Annotated[list[Need], BeforeValidator(as_needs)] = Field(default=[])
    prefer: int = 0  # auto takes the highest whose requirements hold
    small: str | None = None  # the route of transfers of several small buffers, if another
    staging: dict[str, StagingSpec] = Field(default={})
    steps: list[StepSpec] = Field(min_length=1)

    _document: Document | None = PrivateAttr(None)

    @property
    def site(self) -> Site:
        assert self._document is not None
        return self._document.root

    def holds(
        self, when: bool | str, travellers: Mapping[str, Traveller | None], *, wire: str
    ) -> bool:
        """Whether a ``when`` is true for these ends, this staging and this wire dtype."""
        if isinstance(when, bool):
            return when
        return bool(evaluate(when, scope_of(travellers, wire), self.place(when)))

    def name_of(self, word: str, travellers: Mapping[str, Traveller | None], *, wire: str) -> str:
        """The name that a word stands for: itself, or what its expression gives."""
        found = evaluate_word(word, scope_of(travellers, wire), self.place(word))
        if isinstance(found, Record):
            return str(found.fields["name"])
        if not isinstance(found, str):
            raise error("bad-value", f"'{word}' is {kind(found)} here", self.place(word))
        return found

    def place(self, text: str) -> Span:
        """Where an expression of this route stands."""
        return next(spans_of(self.site, self.site.document.data, text), self.site.span)


def spans_of(site: Site, data: Any, text: str) -> Iterator[Span]:
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, dict):
        entries = data.items()
    elif isinstance(data, list):
        entries = enumerate(data)
    for part, value in entries:
        if value == text:
            yield site[part].span
        else:
            yield from spans_of(site[part], value, text)


def scope_of(travellers: Mapping[str, Traveller | None], wire: str) -> dict[str, Any]:
    scope: dict[str, Any] = {
        name: None if each is None else Record({"name": each.name, "dtype": each.dtype})
        for name, each in travellers.items()
    }
    # A route may call a staging buffer "wire"; in expressions that is still the dtype.
    return scope | {"wire": wire}


def load_routes(folders: Iterable[str | Path]) -> dict[str, RouteSpec]:
    """All routes of some folders, by name; of two of one name that of the earlier folder.

    A ``SpecError`` names the mistakes of all files.
    """
    found: dict[str, RouteSpec] = {}
    mistakes: list[Diagnostic] = []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.yaml")):
            try:
                state = path.stat()
                route = kept_route(str(path), state.st_mtime_ns, state.st_size)
            except SpecError as problem:
                mistakes += problem.diagnostics
                continue
            found.setdefault(route.name, route)
    for route in found.values():
        mistakes += unknown_small(route, found)
    if mistakes:
        raise SpecError(mistakes)
    return found


@lru_cache(maxsize=256)
def kept_route(path: str, mtime_ns: int, nbytes: int) -> RouteSpec:
    """Routes read before, by the state of their files: they are frozen."""
    return load_route(path)


def load_route(path: str | Path) -> RouteSpec:
    """Read one route file; a ``SpecError`` of all its mistakes."""
    document = read_yaml(path, keys=frozenset({"on"}))
    route, mistakes = examine(RouteSpec, document)
    if route is None or mistakes:
        raise SpecError(mistakes)
    route._document = document
    faults = list(contradictions(route))
    if faults:
        raise SpecError(faults)
    return route


def contradictions(route: RouteSpec) -> Iterator[Diagnostic]:
    """Names that do not fit: of the file, of steps, and within expressions."""
    site = route.site
    stem = Path(site.document.file).stem
    if route.name != stem:
        yield bad(site["name"], f"the route is named '{route.name}', its file '{stem}'")
    known = (*ENDS, *route.staging)
    for name, staging in route.staging.items():
        at = site["staging"][name]
        if name in ENDS:
            yield bad(at, f"'{name}' is an end of every route already")
        yield from wrong_word(staging.dtype, None, at["dtype"], known)
        yield from wrong_condition(staging.when, at["when"], known)
    seen: set[str] = set()
    for index, step in enumerate(route.steps):
        at = site["steps"][index]
        if step.name in seen:
            yield bad(at["name"], f"a second step '{step.name}'")
        seen.add(step.name)
        yield from wrong_condition(step.when, at["when"], known)
        for argument, word in step.arguments.items():
            place = at["copy"][ENDS.index(argument)] if step.copy_ else at["args"][argument]
            yield from wrong_word(word, known, place, known)


def wrong_word(
    word: str, choices: tuple[str, ...] | None, site: Site, known: tuple[str, ...]
) -> Iterator[Diagnostic]:
    if word.startswith("="):
        yield from wrong_condition(word[1:], site, known)
    elif choices is not None and word not in choices:
        hint = did_you_mean(word, choices) or f"there are {', '.join(choices)}"
        yield bad(site, f"'{word}' is no buffer of this route", hint=hint)


def wrong_condition(when: bool | str, site: Site, known: tuple[str, ...]) -> Iterator[Diagnostic]:
    if isinstance(when, bool):
        return
    try:
        names = check_expression(when, site.span).names
    except SpecError as problem:
        yield from problem.diagnostics
        return
    for name in names:
        first = name.partition(".")[0]
        if first not in (*known, "wire"):
            hint = did_you_mean(first, (*known, "wire"))
            yield bad(site, f"unknown name '{name}' in '{when}'", hint=hint)


def unknown_small(route: RouteSpec, known: Mapping[str, RouteSpec]) -> Iterator[Diagnostic]:
    if route.small is not None and route.small not in known:
        hint = did_you_mean(route.small, known)
        yield bad(route.site["small"], f"there is no route '{route.small}'", hint=hint)


def bad(site: Site, message: str, *, hint: str | None = None) -> Diagnostic:
    return Diagnostic("bad-route", message, site.span, hint=hint)
