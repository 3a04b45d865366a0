"""Values as they stand in a word of the command line."""

from __future__ import annotations

import re
from typing import TypeAlias

from graphc.text.diagnostics import UsageError

MOST_DIGITS = 300
Value: TypeAlias = int | float | bool | str | list["Value"] | None


def value_of(text: str) -> Value:
    """A word as the strict YAML of specs reads it: decimal numbers, true, false, null, lists.

    >>> [value_of(each) for each in ("8", "0.5", "true", "null", "f16", "010", "'8'")]
    [8, 0.5, True, None, 'f16', '010', '8']
    """
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    if re.fullmatch(r"-?(0|[1-9]\d*)", text):
        return whole(text)
    if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", text):
        return float(text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [value_of(each.strip()) for each in parts(inner)] if inner else []
    return text


def whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise UsageError(f"a number of {len(text)} digits is too large: {text[:8]}...")
    return int(text)


def parts(text: str) -> list[str]:
    """What commas part; those within brackets or quotes part nothing.

    >>> parts("1/4,[1/4, 3/4],'a,b'")
    ['1/4', '[1/4, 3/4]', "'a,b'"]
    """
    found, depth, quote = [""], 0, ""
    for each in text:
        if quote:
            quote = "" if each == quote else quote
        elif each in "'\"":
            quote = each
        elif each == "," and not depth:
            found.append("")
            continue
        depth += (each == "[") - (each == "]") if not quote else 0
        found[-1] += each
    return found
