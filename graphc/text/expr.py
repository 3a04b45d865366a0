"""Expressions of specs, contracts and routes: Jinja's grammar over numbers, text, few functions.

Jinja parses; what it parsed is turned into closures over a closed set of node types, so that
nothing is ever handed to ``eval`` and nothing but names in scope can be reached. Numbers stay below
2**62 and text stays short, whatever is written. A scope maps names to values; ``compute.count`` may
be a name of its own in it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from typing import Any, TypeAlias

from jinja2 import Environment, TemplateSyntaxError, nodes

from graphc.dtypes import DTYPES
from graphc.text.diagnostics import NOWHERE, Span, SpecError, error
from graphc.text.load import kind

Scope: TypeAlias = Mapping[str, Any]
Evaluator: TypeAlias = Callable[[Scope], Any]

LONGEST = 1000  # characters of an expression, and of any text that one makes
LARGEST = 2**62  # of any number


class Scaled(int):
    """A number proportional to the count in use: ``factor`` of it for each unit of the count.

    Multiplying by a plain number and dividing exactly by one keep the factor; all else loses it.

    >>> (Scaled(64, 1) * 10).factor, type(Scaled(64, 1) + 1).__name__
    (10, 'int')
    """

    factor: int

    def __new__(cls, value: int, factor: int = 1) -> Scaled:
        self = super().__new__(cls, value)
        self.factor = factor
        return self

    def __reduce__(self) -> tuple[type[Scaled], tuple[int, int]]:
        return Scaled, (int(self), self.factor)

    def __mul__(self, other: int) -> int:
        # Two plain numbers: else the other's own rule would be asked.
        product = int(self) * (int(other) if isinstance(other, int) else other)
        keeps = type(other) is int and other > 0
        return Scaled(product, self.factor * other) if keeps else product

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        quotient = int(self) // other
        is_exact = (
            type(other) is int and other > 0 and self.factor % other == int(self) % other == 0
        )
        return Scaled(quotient, self.factor // other) if is_exact else quotient


def factor_of(value: object) -> int:
    """How many of it there are for each unit of the count; 0 if it does not follow the count."""
    return value.factor if isinstance(value, Scaled) else 0


@dataclass(frozen=True, slots=True)
class Record:
    """A thing with fields that expressions may read: ``compute.count``, ``device.sms``."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: the names that it uses, and how to evaluate it."""

    source: str
    names: tuple[str, ...]
    call: Evaluator


def evaluate(text: str, scope: Scope, span: Span = NOWHERE) -> Any:
    """The value of an expression; ``span`` is where its text stands, for messages.

    >>> evaluate("ceil_div(tokens, 4) if tokens else 1", {"tokens": 10})
    3
    """
    expression = parsed(text, span)
    for name in expression.names:
        if name not in scope and name.partition(".")[0] not in scope:
            raise unknown_name(name, text, scope, span)
    try:
        return bounded(expression.call(scope))
    except Fault as fault:
        raise fault.at(text, span) from None


def evaluate_number(value: int | float | str, scope: Scope, span: Span = NOWHERE) -> Any:
    """A number as it is, a text as an expression that gives a number."""
    if not isinstance(value, str):
        return value
    result = evaluate(value.removeprefix("="), scope, span)
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise error("bad-value", f"'{value}' is {kind(result)}; a number is needed here", span)
    return result


def evaluate_count(value: int | str, scope: Scope, span: Span = NOWHERE) -> int:
    """A whole number that is not negative: an extent, a count, an offset."""
    result = evaluate_number(value, scope, span)
    if not isinstance(result, int):
        raise error("bad-value", f"a whole number is needed here, not {result}", span)
    if result < 0:
        text = f"'{value}' is {result}" if isinstance(value, str) else f"{result}"
        raise error("bad-value", f"{text}; it must not be negative", span)
    return result


def evaluate_word(value: Any, scope: Scope, span: Span = NOWHERE) -> Any:
    """A value as it is, unless it is text that begins with ``=``: then what the rest gives.

    >>> evaluate_word("=wire", {"wire": "f16"}), evaluate_word("wire", {})
    ('f16', 'wire')
    """
    if isinstance(value, str) and value.startswith("="):
        return evaluate(value[1:], scope, span)
    return value


def evaluate_text(text: str, scope: Scope, span: Span = NOWHERE) -> str:
    """Text in which every ``{{ expression }}`` is replaced by its value.

    >>> evaluate_text("{{n}} is above {{ n - 1 }}", {"n": 3})
    '3 is above 2'
    """
    head, *rest = text.split("{{")
    out = [head]
    for part in rest:
        source, closing, tail = part.partition("}}")
        if not closing:
            raise error("bad-expression", "'{{' is never closed by '}}'", span)
        out += [str(evaluate(source.strip(), scope, span)), tail]
    return "".join(out)


def mentions(written: object, names: Iterable[str]) -> bool:
    """Whether any of the names is a word of what was written: if not, it depends on none of them.

    >>> mentions(["=f16", "2 * layer"], ["layer"]), mentions("layers", ["layer"])
    (True, False)
    """
    words = "|".join(map(re.escape, names))
    return bool(words) and re.search(rf"\b(?:{words})\b", repr(written)) is not None


def check_expression(text: str, span: Span = NOWHERE) -> Expression:
    """Parse an expression without a scope; a ``SpecError`` if it is none."""
    return parsed(text, span)


class Fault(Exception):
    """Something wrong within an expression, at a piece of its text if that is known."""

    def __init__(
        self,
        message: str,
        *,
        part: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.part, self.offset, self.hint = message, part, offset, hint

    def at(self, text: str, span: Span) -> SpecError:
        place = inside(span, text, self.part, self.offset) if self.part else span
        return error("bad-expression", f"in '{shown(text)}': {self.message}", place, hint=self.hint)


def shown(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown_name(name: str, text: str, scope: Scope, span: Span) -> SpecError:
    known = sorted(each for each in scope if each != "null")
    close = get_close_matches(name, [*known, *FUNCTIONS], n=1)
    hint = f"did you mean '{close[0]}'?" if close else None
    return error(
        "unknown-name",
        f"unknown name '{name}'" + ("" if text == name else f" in '{shown(text)}'"),
        inside(span, text, name.partition(".")[0]),
        hint=hint or known_names(known),
    )


def known_names(known: list[str]) -> str | None:
    few = [each for each in known if not each.startswith("_")]
    return f"known here: {', '.join(few)}" if 0 < len(few) <= 12 else None


def inside(span: Span, text: str, part: str, start: int | None = None) -> Span:
    """The place of a part of an expression within the scalar that holds the expression."""
    if span == NOWHERE:
        return span
    start = offset_of(text, part) if start is None else start
    # The scalar is the text itself, or the text with quotes around it, with = in front or not.
    lead = span.length - len(text)
    if start is None or not 0 <= lead <= 3:
        return span
    before = (lead + 1) // 2
    return Span(span.file, span.line, span.column + before + start, len(part))


def offset_of(text: str, part: str) -> int | None:
    """Where a name stands in an expression: as a token of its own, not behind a dot."""
    offset, previous = -len(OPEN), ""
    try:
        for _, token, value in ENVIRONMENT.lex(OPEN + text + CLOSE):
            if value == part and previous != ".":
                return offset
            if token != "whitespace":
                previous = value
            offset += len(value)
    except TemplateSyntaxError:
        return None
    return None


def parsed(text: str, span: Span) -> Expression:
    try:
        return parse(text)
    except Fault as fault:
        raise fault.at(text, span) from None


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parse and keep: the cache holds parsed text only, whatever it is evaluated with."""
    if len(text) > LONGEST:
        raise Fault(f"an expression may have at most {LONGEST} characters")
    if not text.strip():
        raise Fault("there is no expression here")
    if any(mark in text for mark in ("{{", "}}", "{%", "%}", "{#", "#}")):
        raise Fault("an expression is written without {{ }}")
    try:
        body = ENVIRONMENT.parse(OPEN + text + CLOSE).body
        node = body[0].nodes[0]  # type: ignore[attr-defined]
        call = build(node)
    except TemplateSyntaxError as problem:
        raise syntax_fault(str(problem.message), text) from None
    except RecursionError:
        raise Fault("it is nested too deeply") from None
    names = dict.fromkeys(each for each in names_in(node) if each not in CONSTANTS)
    return Expression(text, tuple(names), call)


def names_in(node: nodes.Node) -> Iterable[str]:
    if isinstance(node, nodes.Name):
        yield node.name
    elif isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        yield f"{node.node.name}.{node.attr}"
    elif isinstance(node, nodes.Call):
        for argument in node.args:
            yield from names_in(argument)
    else:
        for child in node.iter_child_nodes():
            yield from names_in(child)


def syntax_fault(message: str, text: str) -> Fault:
    """Jinja's message, with a place where it gives one as a number."""
    match = UNEXPECTED.fullmatch(message)
    if match is None:
        said = re.sub("unexpected '(?:}|end of print statement)'", "unexpected end", message)
        return Fault(said, hint=syntax_hint(text))
    offset = int(match[2]) - len(OPEN)
    said = f"the character {match[1]} cannot stand here"
    return Fault(said, part=text[offset : offset + 1], offset=offset, hint=syntax_hint(text))


def syntax_hint(text: str) -> str | None:
    for wrong, right in (("&&", "and"), ("||", "or"), ("!", "not"), ("?", "a if c else b")):
        if wrong in text.replace("!=", ""):
            return f"write '{right}' for '{wrong}'"
    return "compare with ==" if "=" in text else None


def build(node: nodes.Node) -> Evaluator:
    """Turn a parsed expression into a closure; a ``Fault`` for what expressions may not hold."""
    if isinstance(node, nodes.Const | nodes.TemplateData):
        return constant(node)
    if isinstance(node, nodes.Name):
        name = node.name
        return CONSTANTS.get(name) or (lambda scope: scope[name])
    if isinstance(node, nodes.BinExpr) and node.operator in BINARY:
        return binary(node.operator, build(node.left), build(node.right))
    if isinstance(node, nodes.UnaryExpr):
        return unary(node.operator, build(node.node))
    if isinstance(node, nodes.And | nodes.Or):
        return logical(isinstance(node, nodes.And), build(node.left), build(node.right))
    if isinstance(node, nodes.Compare):
        return comparison(node)
    if isinstance(node, nodes.CondExpr):
        return conditional(node)
    if isinstance(node, nodes.List | nodes.Tuple):
        items = [build(each) for each in node.items]
        return lambda scope: [each(scope) for each in items]
    if isinstance(node, nodes.Getattr):
        owner = build(node.node)
        if isinstance(node.node, nodes.Name):
            return dotted(node.node.name, node.attr, attribute(owner, node.attr))
        return attribute(owner, node.attr)
    if isinstance(node, nodes.Call):
        return call(node)
    raise Fault(f"{FORBIDDEN.get(type(node).__name__, 'this')} cannot be used in expressions")


def constant(node: nodes.Const | nodes.TemplateData) -> Evaluator:
    value = node.value if isinstance(node, nodes.Const) else node.data
    return lambda scope: value


def binary(symbol: str, left: Evaluator, right: Evaluator) -> Evaluator:
    apply = BINARY[symbol]

    def run(scope: Scope) -> Any:
        a, b = left(scope), right(scope)
        if not (is_number(a) and is_number(b)) and not (
            symbol == "+" and isinstance(a, str | list) and type(a) is type(b)
        ):
            raise Fault(f"'{symbol}' cannot join {kind(a)} and {kind(b)}")
        if symbol == "**" and (abs(b) > 62 or abs(a) > LARGEST):
            raise Fault("the power is too large")
        try:
            return bounded(apply(a, b))
        except ZeroDivisionError:
            raise Fault("division by zero") from None
        except OverflowError:
            raise Fault("the number is too large") from None

    return run


def unary(symbol: str, operand: Evaluator) -> Evaluator:
    if symbol == "not":
        return lambda scope: not operand(scope)

    def run(scope: Scope) -> Any:
        value = operand(scope)
        if not is_number(value):
            raise Fault(f"'{symbol}' needs a number, not {kind(value)}")
        return -value if symbol == "-" else value

    return run


def logical(is_and: bool, left: Evaluator, right: Evaluator) -> Evaluator:
    if is_and:
        return lambda scope: left(scope) and right(scope)
    return lambda scope: left(scope) or right(scope)


def comparison(node: nodes.Compare) -> Evaluator:
    first = build(node.expr)
    rest = [(each.op, build(each.expr)) for each in node.ops]

    def run(scope: Scope) -> bool:
        left = first(scope)
        for symbol, operand in rest:
            right = operand(scope)
            try:
                if not COMPARE[symbol](left, right):
                    return False
            except TypeError:
                raise Fault(f"{kind(left)} and {kind(right)} cannot be compared") from None
            left = right
        return True

    return run


def conditional(node: nodes.CondExpr) -> Evaluator:
    if node.expr2 is None:
        raise Fault("'if' needs an 'else'")
    test, yes, no = build(node.test), build(node.expr1), build(node.expr2)
    return lambda scope: yes(scope) if test(scope) else no(scope)


def attribute(owner: Evaluator, name: str) -> Evaluator:
    def run(scope: Scope) -> Any:
        value = owner(scope)
        if not isinstance(value, Record):
            raise Fault(f"{kind(value)} has no '.{name}'")
        if name not in value.fields:
            known = ", ".join(f".{each}" for each in value.fields)
            raise Fault(f"there is no '.{name}' here", hint=f"there is {known}")
        return value.fields[name]

    return run


def dotted(owner: str, name: str, otherwise: Evaluator) -> Evaluator:
    """``compute.count``: a name of its own if the scope has it, else a field of ``compute``."""
    whole = f"{owner}.{name}"
    return lambda scope: scope[whole] if whole in scope else otherwise(scope)


def call(node: nodes.Call) -> Evaluator:
    if not isinstance(node.node, nodes.Name) or node.node.name not in FUNCTIONS:
        name = node.node.name if isinstance(node.node, nodes.Name) else "this"
        close = get_close_matches(name, FUNCTIONS, n=1)
        known = ", ".join(FUNCTIONS)
        hint = f"did you mean '{close[0]}'?" if close else f"the functions are {known}"
        raise Fault(f"there is no function '{name}'", part=name, hint=hint)
    if node.kwargs or node.dyn_args or node.dyn_kwargs:
        raise Fault("functions take plain arguments only")
    name, function = node.node.name, FUNCTIONS[node.node.name]
    arguments = [build(each) for each in node.args]

    def run(scope: Scope) -> Any:
        values = [each(scope) for each in arguments]
        try:
            return bounded(function(*values))
        except (TypeError, ValueError):
            given = ", ".join(kind(each) for each in values) or "nothing"
            usage = USAGE[name]
            raise Fault(f"'{name}' is written {usage}; it was given {given}", part=name) from None
        except ZeroDivisionError:
            raise Fault("division by zero", part=name) from None

    return run


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


def bounded(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, Record):
        return value
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise Fault("the number is too large")
    if isinstance(value, float) and not isfinite(value):
        raise Fault("the number is too large")
    if isinstance(value, complex):
        raise Fault("that power is no real number")
    if isinstance(value, str | list) and len(value) > LONGEST:
        raise Fault("the text is too long" if isinstance(value, str) else "the list is too long")
    return value


def numbers(values: Iterable[Any]) -> list[Any]:
    """Numbers without a factor: the smaller of two does not scale as either does."""
    kept = [int(each) if isinstance(each, int) else each for each in values]
    if not all(is_number(each) for each in kept):
        raise TypeError
    return kept


def smallest(*values: Any) -> Any:
    return min(numbers(values))


def largest(*values: Any) -> Any:
    return max(numbers(values))


def ceil_div(a: int, b: int) -> int:
    a, b = numbers((a, b))
    return -(-a // b)


def clamp(x: Any, lo: Any, hi: Any) -> Any:
    x, lo, hi = numbers((x, lo, hi))
    return max(lo, min(x, hi))


def bytes_of(name: str) -> int:
    if name not in DTYPES:
        raise ValueError
    return DTYPES[name].nbytes


UNEXPECTED = re.compile(r"unexpected char (.+) at (\d+)", re.DOTALL)
ENVIRONMENT = Environment()
OPEN, CLOSE = "{{ ", " }}"  # blanks: "{{-" would be whitespace control, not a sign
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": smallest,
    "max": largest,
    "ceil_div": ceil_div,
    "clamp": clamp,
    "bytes": bytes_of,
}
USAGE: Mapping[str, str] = {
    "min": "min(a, b, ...)",
    "max": "max(a, b, ...)",
    "ceil_div": "ceil_div(a, b)",
    "clamp": "clamp(x, lo, hi)",
    "bytes": "bytes(dtype)",
}
CONSTANTS: Mapping[str, Evaluator] = {"null": lambda scope: None}
RESERVED = frozenset({*FUNCTIONS, "null", "true", "false", "none", "True", "False", "None"})
BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda a, b: a in b,
    "notin": lambda a, b: a not in b,
}
FORBIDDEN: Mapping[str, str] = {
    "Filter": "filters",
    "Test": "tests ('is ...')",
    "Getitem": "subscripts",
    "Dict": "mappings",
    "Concat": "'~'",
    "Slice": "slices",
}
