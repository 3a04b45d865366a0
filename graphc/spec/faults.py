"""Mistakes gathered while a spec is built, so that one run names as many as possible."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from graphc.text.diagnostics import Diagnostic, Note, Span, SpecError

ITERATION = re.compile(r"\b[\w-]+\.\d+/")
DEVICE_OF_RANK = re.compile(r"\bgpu\d+\b")


class Faults:
    """What was found so far. ``broken`` names were reported where they are declared."""

    def __init__(self, found: Iterable[Diagnostic] = (), broken: Iterable[str] = ()) -> None:
        self.found = list(found)
        self.broken = frozenset(broken)
        self.moot: frozenset[str] = frozenset()  # codes of what only follows from a fault found
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

    def collecting(self, notes: tuple[Note, ...] = ()) -> Collecting:
        """Keep the mistakes of what is done inside; ``notes`` say how a used file came in."""
        return Collecting(self, notes)

    def follows(self, each: Diagnostic) -> bool:
        """Whether it only says again what was found: that a broken entry is missing, say."""
        if each.code in self.moot:
            return True
        quoted = each.message.split("'")
        return each.code.startswith("unknown-") and len(quoted) > 1 and quoted[1] in self.broken

    def check(self) -> None:
        if self.found:
            raise SpecError(self.found)


@dataclass(frozen=True, slots=True)
class Collecting:
    """What ``Faults.collecting`` gives: no generator, for it is entered often."""

    faults: Faults
    notes: tuple[Note, ...]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> bool:
        if not isinstance(problem, SpecError):
            return False
        found = problem.diagnostics
        self.faults.add(*(replace(each, notes=(*each.notes, *self.notes)) for each in found))
        return True


def fingerprint(each: Diagnostic) -> tuple[str, Span, str]:
    """The same mistake in every iteration of a repeat, or on every rank, is one."""
    return each.code, each.span, DEVICE_OF_RANK.sub("", ITERATION.sub("", each.message))
