"""Errors go from process to process: what is raised there is what arrives here."""

from __future__ import annotations

import pickle

import pytest

from graphc.text.diagnostics import (
    CompilerBug,
    CudaError,
    Diagnostic,
    GraphcError,
    Note,
    Span,
    SpecError,
    UsageError,
)

SPAN = Span("spec.yaml", 3, 4, 2)


@pytest.mark.parametrize(
    "problem",
    [
        SpecError([Diagnostic("race", "a and b", SPAN, (Note("first here", SPAN),), "wait")]),
        UsageError("count 65 is outside"),
        CompilerBug("verify", "a broken pass", dump="stage.txt"),
        CudaError("cuLaunch", "ILLEGAL", "why", op="act", span=SPAN, hint="a new process"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_error_that_was_sent_is_the_same(problem: GraphcError) -> None:
    found = pickle.loads(pickle.dumps(problem))
    assert type(found) is type(problem)
    assert str(found) == str(problem)
    assert {name: each for name, each in vars(found).items() if name != "__notes__"} == vars(
        problem
    )
