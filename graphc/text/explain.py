"""What a person wrote against a model of it: each fault where it stands, in the words of the file.

An unknown field is shown at its key, a bad value at the value, a missing field at what lacks it.
A location of pydantic's is followed through the document as far as the document goes: the tags and
brackets that pydantic puts into it stand in no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from types import UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from graphc.text.diagnostics import Diagnostic, SpecError
from graphc.text.load import Document, PathInFile, Site, kind
from graphc.text.suggest import did_you_mean


class Written(BaseModel):
    """A model of something that a person writes: no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


WrittenT = TypeVar("WrittenT", bound=Written)
Repair: TypeAlias = Callable[[Any, PathInFile, ErrorDetails], bool]
MOST_REPAIRS = 5


def validate(model: type[WrittenT], document: Document) -> WrittenT:
    """The document as an instance of the model; a ``SpecError`` of all faults, YAML's included."""
    instance, faults = examine(model, document)
    if instance is None or faults:
        raise SpecError(faults)
    return instance


def examine(
    model: type[WrittenT], document: Document
) -> tuple[WrittenT | None, tuple[Diagnostic, ...]]:
    """Like ``validate``, but give back the faults."""
    if document.mistakes and (not document.is_complete or not isinstance(document.data, dict)):
        return None, document.mistakes
    try:
        return model.model_validate(document.data), document.mistakes
    except ValidationError as problem:
        found = explain(problem, model, document)
    known = {each.span for each in document.mistakes}
    return None, (*document.mistakes, *(each for each in found if each.span not in known))


def examine_with_repairs(
    model: type[WrittenT], document: Document, repair: Repair
) -> tuple[WrittenT | None, tuple[Diagnostic, ...]]:
    """Like ``examine``, but leave out faulty entries, so that the rest can be looked at as well.

    ``repair`` changes the data so that the fault at a path is gone; False if it cannot.
    """
    instance, faults = examine(model, document)
    data = deepcopy(document.data)
    for _ in range(MOST_REPAIRS):
        if instance is not None or not isinstance(data, dict):
            break
        try:
            instance = model.model_validate(data)
        except ValidationError as problem:
            found = problem.errors(include_url=False)
            places = [follow(replace(document, data=data), each["loc"])[0].path for each in found]
            for path, each in zip(places, found, strict=True):
                if not repair(data, path, each):
                    return None, faults
    return instance, faults


def explain(
    problem: ValidationError, model: type[Written], document: Document
) -> Iterator[Diagnostic]:
    """The faults that pydantic found, each once."""
    seen: set[tuple[object, ...]] = set()
    for each in problem.errors(include_url=False):
        found = explain_one(each, model, document)
        what = (found.span, found.code, found.message)
        if what not in seen:
            seen.add(what)
            yield found


def explain_one(fault: ErrorDetails, model: type[Written], document: Document) -> Diagnostic:
    loc, code = fault["loc"], fault["type"]
    site, value = follow(document, loc)
    context: Mapping[str, Any] = fault.get("ctx") or {}
    if code == "missing":
        last = site.path[-1] if site.path else "the file"
        where = "this" if isinstance(last, int) else f"'{last}'" if site.path else last
        return Diagnostic("missing-field", f"{where} needs a field '{loc[-1]}'", site.key)
    if code == "extra_forbidden":
        name = str(loc[-1])
        known = sorted(fields_at(model, loc[:-1]))
        hint = did_you_mean(name, known) or f"the fields here are {', '.join(known)}"
        return Diagnostic("unknown-field", f"unknown field '{name}'", site.key, hint=hint)
    if code == "graphc":
        at = site.key if context.get("at_key") else site.span
        return Diagnostic(context["code"], fault["msg"], at, hint=context.get("hint"))
    return Diagnostic(
        "bad-value", wording(code, context, value), site.span, hint=guess(value, context)
    )


def follow(document: Document, loc: Iterable[int | str]) -> tuple[Site, Any]:
    site, value = document.root, document.data
    for part in loc:
        is_key = isinstance(value, dict) and part in value
        is_index = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if is_key or is_index:
            site, value = site[part], value[part]
    return site, value


def fields_at(model: type[BaseModel], loc: Iterable[int | str]) -> set[str]:
    """The fields that may stand where ``loc`` leads."""
    kinds: list[Any] = [model]
    for part in loc:
        tagged = [each for each in kinds if is_model(each) and each.__name__ == part]
        kinds = tagged or [each for kind_ in kinds for each in step(kind_, part)] or kinds
    return {name for each in kinds if is_model(each) for name in names_of(each)}


def names_of(model: type[BaseModel]) -> Iterator[str]:
    for name, each in model.model_fields.items():
        yield each.alias or name


def step(kind_: Any, part: int | str) -> Iterator[Any]:
    """The types of an entry: of a model's field, a list's items, a mapping's values."""
    if is_model(kind_):
        for name, each in kind_.model_fields.items():
            if part in (name, each.alias):
                yield from alternatives(each.annotation)
                return
        extra = kind_.__annotations__.get("__pydantic_extra__")
        if extra is not None:
            yield from alternatives(get_args(get_type_hints(kind_)["__pydantic_extra__"])[1])
    elif get_origin(kind_) is list:
        yield from alternatives(get_args(kind_)[0])
    elif get_origin(kind_) is dict:
        yield from alternatives(get_args(kind_)[1])


def alternatives(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from alternatives(each)
    elif get_origin(annotation) is Annotated:
        yield from alternatives(get_args(annotation)[0])
    else:
        yield annotation


def is_model(kind_: Any) -> bool:
    return isinstance(kind_, type) and issubclass(kind_, BaseModel)


EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "none_required": "null",
}


def wording(code: str, context: Mapping[str, Any], value: object) -> str:
    if code in EXPECTED:
        return f"expected {EXPECTED[code]}, found {kind(value)}"
    if code == "literal_error":
        return f"expected {context['expected']}, found {kind(value)}"
    limits = {
        "greater_than": "above",
        "greater_than_equal": "at least",
        "less_than_equal": "at most",
    }
    for name, word in limits.items():
        if code == name:
            limit = context.get("gt", context.get("ge", context.get("le")))
            return f"must be {word} {limit}, found {value}"
    if code == "too_short":
        return (
            f"expected at least {context['min_length']} entries, found {context['actual_length']}"
        )
    if code == "too_long":
        return f"expected at most {context['max_length']} entries, found {context['actual_length']}"
    return f"this is not right here: {code.replace('_', ' ')}"


def guess(value: object, context: Mapping[str, Any]) -> str | None:
    expected = str(context.get("expected", ""))
    choices = [each for each in expected.split("'")[1::2] if each]
    return did_you_mean(value, choices) if isinstance(value, str) and choices else None


def fault(
    message: str, *, code: str = "bad-value", hint: str | None = None, at_key: bool = False
) -> PydanticCustomError:
    """What a validator raises: a diagnostic at the value, or at its key."""
    # Braces would be taken for fields to fill in.
    text = message.replace("{", "(").replace("}", ")")
    return PydanticCustomError("graphc", text, {"code": code, "hint": hint, "at_key": at_key})


def as_expression(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise fault(f"expected a number or an expression, found {kind(value)}")
    return value


def as_condition(value: object) -> object:
    if not isinstance(value, bool | str):
        raise fault(f"expected true, false or an expression, found {kind(value)}")
    return value


def as_word(value: object) -> object:
    if not isinstance(value, str):
        raise fault(f"expected a name, or = and an expression, found {kind(value)}")
    return value


def as_value(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise fault(f"expected a number, text, true or false, found {kind(value)}")
    return value


Number = Annotated[Any, BeforeValidator(as_expression)]  # 3, "tokens * hidden"
Condition = Annotated[Any, BeforeValidator(as_condition)]  # true, "wire != dtype"
Word = Annotated[Any, BeforeValidator(as_word)]  # f16, "=wire"
Scalar = Annotated[Any, BeforeValidator(as_value)]
