"""Strict YAML with positions: plain data, and where every key and value stands.

Only ``null``, ``true``, ``false``, decimal numbers and text are read. All else that some YAML
reader takes for something other than text (``on``, ``010``, ``1:30``, ``4_096``, ``1e3``, dates),
and all that makes a file mean more than it shows (duplicate and merge keys, anchors, tags, several
documents) is a mistake. Reading goes on after a mistake, so that one run names all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from graphc.text.diagnostics import NOWHERE, Diagnostic, Note, Span, SpecError, error

PathInFile: TypeAlias = tuple[str | int, ...]
Event: TypeAlias = Any  # one of PyYAML's; its stubs do not know which fields which event has

DEEPEST = 40  # levels of nesting; no file that a person wrote comes near
LARGEST = 4_000_000  # characters of a file


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry stands: its value, and its key if a mapping holds it."""

    value: Span
    key: Span | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """The data of one file and the place of each entry; ``mistakes`` are those of its YAML."""

    file: str
    data: Any
    places: Mapping[PathInFile, Place] = field(default_factory=dict)
    mistakes: tuple[Diagnostic, ...] = ()
    is_complete: bool = True  # whether the whole file could be read
    root: Site = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Site(self))

    def place(self, path: PathInFile) -> Place:
        """The place of the entry, or of the nearest one around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(NOWHERE))


class Site:
    """One entry of a document, from which others are reached: ``site["ops"][2]``.

    Entries are asked for again and again, in every iteration of a repeat: each is one object.
    """

    __slots__ = ("document", "inner", "key", "path", "span")

    def __init__(self, document: Document, path: PathInFile = ()) -> None:
        self.document, self.path = document, path
        self.inner: dict[str | int, Site] = {}
        place = document.place(path)
        self.span = place.value  # where the value stands
        self.key = place.key or place.value  # where the key stands; in a list, the value

    def __getitem__(self, part: str | int) -> Site:
        found = self.inner.get(part)
        if found is None:
            found = self.inner[part] = Site(self.document, (*self.path, part))
        return found

    @property
    def is_written(self) -> bool:
        return self.path in self.document.places


def load_yaml(path: str | Path, *, keys: frozenset[str] = frozenset()) -> Document:
    """Read a file; a ``SpecError`` of all its mistakes. ``keys``: odd words that it may use so."""
    return checked(read_yaml(path, keys=keys))


def load_comment(path: str | Path) -> Document:
    """Read the YAML in the leading Jinja comment of a template, with the lines of the template."""
    return checked(read_comment(path))


def checked(document: Document) -> Document:
    if document.mistakes:
        raise SpecError(document.mistakes)
    return document


def read_yaml(path: str | Path, *, keys: frozenset[str] = frozenset()) -> Document:
    """Like ``load_yaml``, but keep the mistakes in the document, so that more can be found."""
    return parse_yaml(read_text(path), str(path), keys=keys)


def read_comment(path: str | Path) -> Document:
    """Like ``load_comment``, but keep the mistakes in the document."""
    text = read_text(path)
    start = len(text) - len(text.lstrip())
    if not text.startswith("{#", start):
        raise error(
            "no-contract",
            f"'{path}' does not begin with a contract",
            Span(str(path), 1, 1),
            hint="begin the file with {# graphc_kernel: 1 ... #}",
        )
    stop = text.find("#}", start)
    if stop < 0:
        line = text.count("\n", 0, start) + 1
        raise error(
            "no-contract", "this comment never ends: '#}' is missing", Span(str(path), line, 1, 2)
        )
    # Blanks in place of the opening keep every line and column as it is in the file.
    opening = 3 if text.startswith(("{#-", "{#+"), start) else 2
    body = text[start + opening : stop].removesuffix("-").removesuffix("+")
    return parse_yaml(text[:start] + " " * opening + body, str(path))


def read_text(path: str | Path) -> str:
    """The text of a file; a ``SpecError`` if it is missing, too large or not UTF-8."""
    try:
        raw = Path(path).read_bytes()
    except OSError as problem:
        raise error("missing-file", f"cannot read '{path}': {problem.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before = raw[: problem.start].decode("utf-8-sig")
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise error(
            "not-utf8",
            f"this is not UTF-8 text: byte 0x{raw[problem.start]:02x} stands alone",
            Span(str(path), line, column),
            hint="save the file as UTF-8",
        ) from None
    if len(text) > LARGEST:
        raise error("bad-file", f"'{path}' has {len(text)} characters; at most {LARGEST} are read")
    return text


def parse_yaml(text: str, file: str, *, keys: frozenset[str] = frozenset()) -> Document:
    """Turn text into data and places.

    >>> parse_yaml("a: [1, x]", "f.yaml").data
    {'a': [1, 'x']}
    >>> str(parse_yaml("a: [1, x]", "f.yaml").root["a"][1].span)
    'f.yaml:1:8'
    """
    reader = Reader(file, keys)
    try:
        reader.read(text)
    except Unreadable as problem:
        reader.mistakes.append(problem.diagnostic)
        return reader.document(is_complete=False)
    return reader.document(is_complete=True)


class Unreadable(Exception):
    """What ends the reading of a file."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class Reader:
    """One pass over the events of a YAML text."""

    def __init__(self, file: str, keys: frozenset[str]) -> None:
        self.file, self.keys = file, keys
        self.places: dict[PathInFile, Place] = {}
        self.mistakes: list[Diagnostic] = []
        self.data: Any = None
        self.events: Iterator[Event] = iter(())

    def document(self, *, is_complete: bool) -> Document:
        return Document(self.file, self.data, self.places, tuple(self.mistakes), is_complete)

    def read(self, text: str) -> None:
        self.events = events(text, self.file)
        found = False
        for event in self.events:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            if found:
                second = self.span(event)
                raise Unreadable(
                    Diagnostic("many-documents", "a second document begins here", second)
                )
            found = True
            self.data = self.value(next(self.events), (), None)
        if not isinstance(self.data, dict) and not self.mistakes:
            self.not_a_mapping(found)

    def not_a_mapping(self, found: bool) -> None:
        place = self.places.get((), Place(Span(self.file, 1, 1)))
        what = "this file is empty" if self.data is None else f"this file is {kind(self.data)}"
        hint = None if found else "a spec begins with graphc: 1"
        self.mistake("bad-file", f"{what}, not a mapping of fields", place.value, hint=hint)

    def value(self, event: Event, path: PathInFile, key: Span | None) -> Any:
        self.refuse_hidden_meaning(event)
        if len(path) > DEEPEST:
            raise Unreadable(
                Diagnostic("bad-file", f"nested deeper than {DEEPEST} levels", self.span(event))
            )
        self.places[path] = Place(self.span(event), key)
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(event, path, key)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(event, path, key)
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event)
        return None  # an alias, refused above

    def mapping(self, start: Event, path: PathInFile, key: Span | None) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        first: Span | None = None
        for event in self.events:
            if isinstance(event, yaml.MappingEndEvent):
                self.close(start, event, path, key, first)
                break
            at = self.span(event)
            first = first or at
            name = self.key(event)
            known = name in entries
            if known:
                before = self.places[(*path, name)].key or NOWHERE
                self.mistake(
                    "duplicate-key", f"key '{name}' appears twice", at, Note("first here", before)
                )
            # A second value is read for its own mistakes and then forgotten.
            where = (*path, f"{name} (again)") if known else (*path, name)
            value = self.value(next(self.events), where, at)
            if name == "<<" and not event.style:
                merge(entries, value)  # so that what it holds is not missed as well
            elif not known:
                entries[name] = value
        return entries

    def sequence(self, start: Event, path: PathInFile, key: Span | None) -> list[Any]:
        items: list[Any] = []
        first: Span | None = None
        for event in self.events:
            if isinstance(event, yaml.SequenceEndEvent):
                self.close(start, event, path, key, first)
                break
            items.append(self.value(event, (*path, len(items)), None))
            first = first or self.places[(*path, 0)].value
        return items

    def close(
        self,
        start: Event,
        end: Event,
        path: PathInFile,
        key: Span | None,
        first: Span | None,
    ) -> None:
        """Now that the end is known: a caret run for one line, or the first entry for many."""
        span = self.span(start)
        if start.start_mark.line == end.end_mark.line and start.flow_style:
            width = end.end_mark.column - start.start_mark.column
            span = Span(span.file, span.line, span.column, max(1, width))
        elif first is not None and not start.flow_style:
            span = first
        self.places[path] = Place(span, key)

    def key(self, event: Event) -> str:
        self.refuse_hidden_meaning(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise Unreadable(Diagnostic("bad-key", "a key must be text", self.span(event)))
        name = str(event.value)
        if event.style:  # quoted
            return name
        if name == "<<":
            self.mistake(
                "merge-key",
                "merge keys are not read: a file must mean what it shows",
                self.span(event),
                hint="write the fields out, or bring ops in with use:",
            )
        elif name not in self.keys and (ACCEPTED.fullmatch(name) or surprise(name) is not None):
            self.mistake(
                "bad-key",
                f"a key must be text; some YAML readers take '{name}' for something else",
                self.span(event),
                hint=f'quote it: "{name}"' if name else None,
            )
        return name

    def scalar(self, event: yaml.ScalarEvent) -> Any:
        text = str(event.value)
        if event.style:
            return text
        if not text:
            self.mistake(
                "empty-value",
                "there is no value here",
                self.span(event),
                hint="write null, [] or {} if nothing is meant",
            )
            return None
        if ACCEPTED.fullmatch(text):
            return self.plain(text, event)
        advice = surprise(text)
        if advice is not None:
            self.mistake(
                "ambiguous-value",
                f"'{text}' does not mean the same to all YAML readers",
                self.span(event),
                hint=advice,
            )
        return text

    def plain(self, text: str, event: yaml.ScalarEvent) -> Any:
        value = plain(text) if len(text) <= MOST_DIGITS else inf
        if isinstance(value, float) and not isfinite(value):
            self.mistake("bad-value", "the number is too large", self.span(event))
            return 0
        return value

    def refuse_hidden_meaning(self, event: Event) -> None:
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            self.mistake(
                "yaml-anchor",
                f"aliases are not read: write out what '*{anchor}' stands for",
                self.span(event),
            )
        elif anchor:
            self.mistake(
                "yaml-anchor", f"anchors are not read: remove '&{anchor}'", self.span(event)
            )
        if getattr(event, "tag", None):
            self.mistake("yaml-tag", "tags are not read: remove it", self.span(event))

    def span(self, event: Event) -> Span:
        start, end = event.start_mark, event.end_mark
        same_line = start.line == end.line
        width = end.column - start.column if same_line else 10**6  # cut where the line is quoted
        if isinstance(event, yaml.ScalarEvent) and event.style in ("|", ">"):
            width = 1
        return Span(self.file, start.line + 1, start.column + 1, max(1, width))

    def mistake(
        self, code: str, message: str, span: Span, *notes: Note, hint: str | None = None
    ) -> None:
        self.mistakes.append(Diagnostic(code, message, span, notes, hint))


def merge(entries: dict[str, Any], value: Any) -> None:
    for name, each in value.items() if isinstance(value, dict) else ():
        entries.setdefault(name, each)


def events(text: str, file: str) -> Iterator[Event]:
    """The parser's events, by the fast parser if there is one; its faults in the words of ours."""
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(text, Loader=fast)
    except yaml.YAMLError as problem:
        raise Unreadable(syntax_mistake(text, file, problem)) from None


def syntax_mistake(text: str, file: str, problem: yaml.YAMLError) -> Diagnostic:
    # The pure parser words its faults better, and the same on every machine.
    try:
        for _ in yaml.parse(text, Loader=yaml.SafeLoader):
            pass
    except yaml.reader.ReaderError as unreadable:
        line = text.count("\n", 0, unreadable.position)
        column = unreadable.position - (text.rfind("\n", 0, unreadable.position) + 1)
        code = ord(text[unreadable.position])
        return Diagnostic(
            "yaml-syntax",
            f"the control character U+{code:04X} cannot stand in a YAML file",
            Span(file, line + 1, column + 1),
        )
    except yaml.YAMLError as worded:
        problem = worded
    if not isinstance(problem, yaml.MarkedYAMLError) or problem.problem_mark is None:
        return Diagnostic("yaml-syntax", str(problem), Span(file, 1, 1))
    mark, context = problem.problem_mark, problem.context_mark
    notes: tuple[Note, ...] = ()
    if context is not None and problem.context and context.line != mark.line:
        notes = (Note(problem.context, Span(file, context.line + 1, context.column + 1)),)
    what = problem.problem or "this cannot be read"
    return Diagnostic(
        "yaml-syntax", what, Span(file, mark.line + 1, mark.column + 1), notes, syntax_hint(what)
    )


def syntax_hint(problem: str) -> str | None:
    if "'\\t'" in problem:
        return "indent with spaces, not with tabs"
    if "mapping values are not allowed" in problem:
        return "quote text that holds ': ', or check the indentation"
    if "'%'" in problem or "'@'" in problem or "'`'" in problem:
        return "quote text that begins so"
    return None


MOST_DIGITS = 300  # of a number
INTEGER = r"-?(?:0|[1-9][0-9]*)"
ACCEPTED = re.compile(rf"null|true|false|{INTEGER}|{INTEGER}\.[0-9]+(?:[eE][-+][0-9]+)?")


def plain(text: str) -> bool | int | float | None:
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    return float(text) if "." in text else int(text)


WORDS = {
    **dict.fromkeys(("yes", "on", "true"), "true"),
    **dict.fromkeys(("no", "off", "false"), "false"),
    **dict.fromkeys(("~", "null"), "null"),
}
NUMBER_LIKE = frozenset("+-.=0123456789")  # what all of the following begin with
SURPRISES = (
    (re.compile(r"[-+]?0[0-9_]*[0-9]"), "leading zeros make an octal number of it"),
    (re.compile(r"[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[bB][01_]+|0o[0-7_]+"), "write it in decimal"),
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"), "numbers to the base 60"),
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?"), "write it without underscores"),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.?[0-9]*)[eE][-+]?[0-9]+"), "exponent"),
    (re.compile(r"[-+]?\.[0-9_]+|[-+]?[0-9]+\."), "write digits on both sides of the point"),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), "there is no such number in a spec"),
    (re.compile(r"\+[0-9.]+"), "write it without the plus sign"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"), "quote it: a date to some"),
    (re.compile(r"="), "quote it"),
)


def surprise(text: str) -> str | None:
    """What to write instead of text that YAML readers disagree about; None if they agree.

    >>> surprise("on"), surprise("1e3"), surprise("one")
    ("write true, or quote it: 'on'", 'write 1000, or 1.0e+3', None)
    """
    word = WORDS.get(text.lower())
    if word is not None and text != word:
        return f"write {word}, or quote it: '{text}'"
    if text[:1] not in NUMBER_LIKE:
        return None
    for pattern, advice in SURPRISES:
        if pattern.fullmatch(text):
            return instead(text, advice)
    return None


def instead(text: str, advice: str) -> str:
    if advice == "exponent":
        return exponent_advice(text)
    if advice.startswith("leading zeros") and "_" not in text:
        return f"write {int(text)}; {advice} to some"
    if advice.startswith("numbers to the base 60"):
        return f"quote it: '{text}'; some readers know {advice}"
    if advice == "write it in decimal":
        return f"write {int(text.replace('_', ''), 0)}"
    if "underscores" in advice or "plus" in advice:
        return f"write {text.replace('_', '').lstrip('+')}"
    return advice


def exponent_advice(text: str) -> str:
    mantissa, exponent = text.lower().split("e")
    whole, _, rest = mantissa.partition(".")
    sign = exponent if exponent.startswith(("-", "+")) else f"+{exponent}"
    full = f"{whole.lstrip('+') or '0'}.{rest or '0'}e{sign}"
    value = float(full)
    if abs(value) < 1e15 and value == int(value):
        return f"write {int(value)}, or {full}"
    return f"write {full}"


def kind(value: object) -> str:
    """What a person would call the value.

    >>> kind([1]), kind("a"), kind(None)
    ('a list', "the text 'a'", 'null')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text '{value}'" if len(value) <= 40 else "a text"
    if isinstance(value, list | tuple):
        return "a list"
    return "a mapping" if isinstance(value, dict) else type(value).__name__
