"""Mistakes gathered while a spec is built, so that one run names as many as possible."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from graphc.text.diagnostics import Diagnostic, Note, Span, SpecError

ITERATION = re.compile(r"\b[\w-]+\.\d+/")


class Faults:
    """What was found so far. ``broken`` names were reported where they are declared."""

    def __init__(self, found: Iterable[Diagnostic] = (), broken: Iterable[str] = ()) -> None:
        self.found = list(found)
        self.broken = frozenset(broken)
        self.seen = {fingerprint(each) for each in self.found}

    def add(self, *diagnostics: Diagnostic) -> None:
        for each in diagnostics:
            known = fingerprint(each)
            if known not in self.seen and not self.follows(each):
                self.seen.add(known)
                self.found.append(each)

    def mistake(
        self,
        code: str,
        message: str,
        span: Span,
        *notes: Note,
        hint: str | None = None,
    ) -> None:
        self.add(Diagnostic(code, message, span, notes, hint))

    @contextmanager
    def collecting(self, notes: tuple[Note, ...] = ()) -> Iterator[None]:
        """Keep the mistakes of what is done inside; ``notes`` say how a used file came in."""
        try:
            yield
        except SpecError as problem:
            self.add(*(replace(each, notes=(*each.notes, *notes)) for each in problem.diagnostics))

    def follows(self, each: Diagnostic) -> bool:
        """Whether it only says again that a broken entry is missing."""
        quoted = each.message.split("'")
        return each.code.startswith("unknown-") and len(quoted) > 1 and quoted[1] in self.broken

    def check(self) -> None:
        if self.found:
            raise SpecError(self.found)


def fingerprint(each: Diagnostic) -> tuple[str, Span, str]:
    """The same mistake in every iteration of a repeat is one."""
    return each.code, each.span, ITERATION.sub("", each.message)
