"""What an extern op's function, and its reference, are called with.

Both are given an array for each argument, the scalars, and by name, if they have such parameters:
``lo`` and ``hi``, the rows of the axis that the piece covers, and ``count``. What a function
enqueues is fixed when the graph is built, before any count is known. Therefore ``lo`` and ``hi``
are rows at the capacity, for the reference, too, so that both leave the same bits. And therefore
an op over counted rows is not cut: pieces of other ops follow the count in use, and a piece at the
capacity would touch rows that belong to other pieces of theirs. ``count`` is the number in use for
the reference, and the address of that number on the device for the function.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from graphc.backends.outside import notes_of, told
from graphc.ir import Extern, Op, Program
from graphc.text.diagnostics import error

OWN_NAMES = ("stream", "lo", "hi", "count")  # what graphc gives, so no argument's name


def check_externs(program: Program) -> None:
    """Refuse what no function could do; nothing of the user's is imported."""
    for op in program:
        if isinstance(op.work, Extern):
            check_names(op, op.work)
            pieces = max(op.piece.of, len(op.placement.pieces) - 1)
            if pieces > 1 and op.axis.per_count:
                raise error(
                    "cannot-cut",
                    f"'{op.step}' cannot be cut into {pieces} pieces: '{program.count_name}' "
                    "governs its axis, and what an extern function enqueues does not follow "
                    "the count",
                    op.span,
                    hint="leave it whole: it works on the rows of the capacity",
                )


def check_names(op: Op, extern: Extern) -> None:
    for name in (*(each.argument for each in op.accesses), *extern.scalars):
        if name in OWN_NAMES:
            raise error(
                "bad-name",
                f"'{name}' cannot be the name of an extern's argument: graphc gives "
                f"{', '.join(OWN_NAMES)} by itself",
                op.span,
            )


def load_functions(program: Program) -> dict[str, Callable[..., Any]]:
    """Step -> the function that enqueues its work, found fit to be called."""
    check_externs(program)
    return {
        op.step: fit(resolve(op.work.function, op), op.work.function, op, op.work, ("stream",))
        for op in program
        if isinstance(op.work, Extern)
    }


def load_references(program: Program) -> dict[str, Callable[..., Any]]:
    """Step -> its meaning in numpy, found fit to be called."""
    check_externs(program)
    return {
        op.step: fit(resolve(op.work.reference, op), op.work.reference, op, op.work, ())
        for op in program
        if isinstance(op.work, Extern)
    }


def resolve(name: str, op: Op) -> Callable[..., Any]:
    """The function that ``module:name`` names."""
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except Exception as problem:  # the module is the user's: it may raise anything
        is_missing = isinstance(problem, ImportError | AttributeError)
        raise error(
            "unknown-extern",
            f"cannot load '{name}': {problem if is_missing else told(problem)}",
            op.span,
            notes=[] if is_missing else notes_of(problem),
            hint="write it as 'module:function', importable from where graphc runs",
        ) from None
    if not callable(found):
        raise error("unknown-extern", f"'{name}' is no function", op.span)
    return found


def fit(
    function: Callable[..., Any], name: str, op: Op, extern: Extern, always: tuple[str, ...]
) -> Callable[..., Any]:
    """The function, if it takes what it will be given, and its rows if the op is cut."""
    parameters = parameters_of(function)
    if op.piece.of > 1 and not {"lo", "hi"} <= {*parameters}:
        raise error(
            "cannot-cut",
            f"'{op.step}' cannot be cut into {op.piece.of} pieces: '{name}' has no parameters "
            "'lo' and 'hi', so each piece would do all of its work",
            op.span,
            hint="let the function take lo and hi, and touch the rows from lo to hi alone",
        )
    given = (*always, *(each.argument for each in op.accesses), *extern.scalars)
    own = tuple(each for each in ("lo", "hi", "count") if each in parameters)
    try:
        inspect.signature(function).bind(**dict.fromkeys((*given, *own)))
    except TypeError as problem:
        raise error(
            "unknown-extern",
            f"'{name}' does not fit op '{op.step}': {problem}",
            op.span,
            hint=f"it is called with {', '.join(given)}",
        ) from None
    except ValueError:  # a function that does not show its parameters
        pass
    return function


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except ValueError:
        return ()


def call_function(
    function: Callable[..., Any],
    op: Op,
    arrays: Mapping[str, Any],
    *,
    capacity: int | None,
    count: int | None,
    **always: Any,
) -> None:
    """Call the function for one piece; ``count`` is passed on as it is."""
    assert isinstance(op.work, Extern)
    lo, hi = op.piece.bounds(op.axis, capacity)
    own = {"lo": lo, "hi": hi, "count": count}
    names = parameters_of(function)
    asked = {name: value for name, value in own.items() if name in names}
    function(**always, **arrays, **op.work.scalars, **asked)
