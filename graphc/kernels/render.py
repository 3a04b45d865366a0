"""A contract and a kernel's symbols -> CUDA C++ source that tells where each line came from.

A template is Jinja, rendered strictly: a name that is not defined is a mistake. It sees the symbols
(except the split axis and what follows the count: a kernel serves any number of rows), the options,
``dtype`` (of given arguments) and ``ctype`` by argument, ``arch``, and what every kernel has:
``entry``, ``params``, ``bounds``, ``guard``.
``reject(message)`` refuses a combination that the template cannot serve.

The source carries ``#line`` directives that name the template of what follows, those of included
files too; ``origin`` reads them. The shipped folder is written ``graphc:``, so that a plan does not
depend on where graphc is installed.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
)
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from graphc.dtypes import dtype
from graphc.ir import Kernel
from graphc.kernels.bind import built_in
from graphc.kernels.contract import read_binary
from graphc.plan import KernelImage, Launch
from graphc.resources import shipped
from graphc.text.diagnostics import Span, SpecError, error

if TYPE_CHECKING:
    from graphc.kernels.contract import Contract

PIECE_PARAMETERS = (
    "const int* graphc_count",
    "int graphc_scale",
    "int graphc_lo",
    "int graphc_hi",
    "int graphc_den",
    "int graphc_piece",
)

# Rows [lo, hi) of this piece: of the count in use if one is given, else of the fixed extent.
BOUNDS = (
    "const long long graphc_unit ="
    " graphc_count ? *(const volatile int*)graphc_count : graphc_scale;",
    "const long long graphc_rows = graphc_count ? graphc_scale : 1;",
    "const long long lo = graphc_rows * (graphc_unit * graphc_lo / graphc_den);",
    "const long long hi = graphc_rows * (graphc_unit * graphc_hi / graphc_den);",
)

# One pointer for each rank, by value; the compiler reads them from the constants of the launch.
PEERS = (
    "template <typename T, int N> struct Peers { T* at[N];"
    " __device__ __forceinline__ T* operator[](int rank) const { return at[rank]; } };\n"
)
GUARD_PARAMETER = "const unsigned int* graphc_guard"
GUARD = "if (graphc_guard && *(const volatile unsigned int*)graphc_guard) return;"

# In data of the template each end of a line is preceded by its file and number between these.
OPEN, CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{OPEN}([^{CLOSE}]*):([0-9]+){CLOSE}")
LINE = re.compile(r'#line ([0-9]+) "([^"]*)"')
SHIPPED = "graphc:"
READY = "ready"  # the key, among an image's cubins, of one that came with its contract
LONGEST_GAP = 3  # lines left out of a template that become blank lines, not a directive


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a rendered line came from."""

    file: str  # as in the source: "graphc:convert.cu.j2", or a path
    line: int

    @property
    def span(self) -> Span:
        return Span(str(located(self.file)), self.line, 1)


def image(contract: Contract, kernel: Kernel, dtypes: Mapping[str, str], arch: int) -> KernelImage:
    """The rendered kernel, ready to be compiled; ``dtypes`` are those of the given arguments.

    Of a kernel with a binary the source only says where it comes from.
    """
    cubins: dict[str, str] = {}
    if contract.binary is None:
        source = render(contract, kernel, dtypes, arch)
    else:
        binary = read_binary(contract)
        cubins = {READY: b64encode(binary).decode()}
        source = f'#line 1 "{labelled(str(contract.path))}"\n// ready: {contract.binary}\n'
    entry = contract.entry or contract.name
    launch = Launch(
        grid=tuple(map(str, contract.launch.grid)),
        block=tuple(map(str, contract.launch.block)),
        shared=str(contract.launch.shared),
        cluster=tuple(map(str, contract.launch.cluster)),
        is_cooperative=contract.launch.cooperative,
    )
    tables = {
        name: ranks_of(contract, name, kernel)
        for name, each in contract.args.items()
        if each.peers is not None
    }
    faults = {name: each.faults for name, each in contract.args.items() if each.faults}
    more = tuple(each for each in (tables, faults, contract.guarded) if each)
    known = bare(source), *astuple(launch), *ready(cubins, entry), *more
    return KernelImage(
        key=f"{contract.name}-{digest(*known)[:8]}",
        template=contract.name,
        entry=entry,
        source=source,
        pointers=tuple(contract.args),
        scalars=tuple(contract.scalars.items()),
        launch=launch,
        min_capability=contract.min_capability,
        reference=contract.reference,
        cubins=cubins,
        tables=tables,
        is_guarded=contract.guarded,
        faults=faults,
    )


def ranks_of(contract: Contract, argument: str, kernel: Kernel) -> int:
    """The entries of a table of pointers: one even where nothing is given for it."""
    return max(1, int(kernel.symbols[str(contract.args[argument].peers)]))


def ready(cubins: Mapping[str, str], entry: str) -> tuple[object, ...]:
    """What tells a ready kernel from others; nothing for one that is compiled from its source."""
    return (*cubins.items(), entry) if cubins else ()


def render(contract: Contract, kernel: Kernel, dtypes: Mapping[str, str], arch: int) -> str:
    """The source of one kernel; a ``SpecError`` at the template's line if it cannot be rendered."""
    path = Path(contract.path)
    try:
        template = environment((path.parent, shipped("templates"))).get_template(path.name)
        text = template.render(context(contract, kernel, dtypes, arch))
    except TemplateSyntaxError as problem:
        file = problem.filename or str(path)
        raise refused(contract, problem.message or "", Span(file, problem.lineno, 1)) from None
    except TemplateNotFound as problem:
        raise refused(
            contract, f"there is no '{problem.message}'", failing_line(problem, path)
        ) from None
    except (TemplateError, TypeError, ValueError, ArithmeticError) as problem:
        raise refused(contract, str(problem), failing_line(problem, path)) from None
    source = with_directives(text)
    if contract.guarded and source.count("graphc_guard") < 2:
        text = "it is guarded, but never looks: write {{ guard }} where it begins"
        raise refused(contract, text, Span(str(path), 1, 1))
    has_tables = any(each.peers is not None for each in contract.args.values())
    return PEERS + source if has_tables else source


def context(
    contract: Contract, kernel: Kernel, dtypes: Mapping[str, str], arch: int
) -> dict[str, Any]:
    """All that a template sees."""
    known = {name: dtypes.get(name) or each.dtype[0] for name, each in contract.args.items()}
    return {
        **built_in(contract, kernel),
        **{name: option.default for name, option in contract.options.items()},
        **kernel.options,
        "dtype": dict(dtypes),
        "ctype": {name: dtype(each).ctype for name, each in known.items()},
        "arch": arch,
        "entry": contract.name,
        "params": parameters(contract, kernel, known),
        "bounds": "\n  ".join(BOUNDS),
        "guard": GUARD if contract.guarded else "",
        "reject": reject,
    }


def parameters(contract: Contract, kernel: Kernel, dtypes: Mapping[str, str]) -> str:
    pointers = []
    for name, each in contract.args.items():
        element = f"{'const ' if each.access == 'read' else ''}{dtype(dtypes[name]).ctype}"
        if each.peers is None:
            pointers.append(f"{element}* {name}")
        else:
            ranks = ranks_of(contract, name, kernel)
            pointers.append(f"const __grid_constant__ Peers<{element}, {ranks}> {name}")
    scalars = [f"{dtype(kind).ctype} {name}" for name, kind in contract.scalars.items()]
    guards = [GUARD_PARAMETER] if contract.guarded else []
    return ", ".join([*pointers, *scalars, *PIECE_PARAMETERS, *guards])


def reject(message: str) -> NoReturn:
    raise TemplateError(message)


def refused(contract: Contract, message: str, span: Span) -> SpecError:
    hint = None
    for name in contract.symbols:
        if f"'{name}' is undefined" in message:
            hint = f"'{name}' varies from launch to launch, so it cannot be built in: use lo and hi"
    return error(
        "bad-kernel", f"kernel '{contract.name}' cannot be rendered: {message}", span, hint=hint
    )


def failing_line(problem: BaseException, path: Path) -> Span:
    """The innermost line of a template in the traceback (Jinja writes template lines there)."""
    found = Span(str(path), 1, 1)
    trace: TracebackType | None = problem.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            found = Span(file, trace.tb_lineno, 1)
        trace = trace.tb_next
    return found


class Marks(Extension):
    """Marks the end of every line of a template's text with the file and number of the line."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        label = labelled(stream.filename or stream.name or "")
        for token in stream:
            yield marked(token, label) if token.type == "data" else token


def marked(token: Token, label: str) -> Token:
    first, *others = token.value.split("\n")
    text = first
    for number, line in enumerate(others, token.lineno):
        text += f"{OPEN}{label}:{number}{CLOSE}\n{line}"
    return Token(token.lineno, token.type, text)


@lru_cache(maxsize=32)
def environment(folders: tuple[Path, ...]) -> Environment:
    """Jinja over these folders; it keeps parsed templates and reads changed files again."""
    return Environment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        extensions=[Marks],
    )


def labelled(file: str) -> str:
    """The file as the source names it: one that is shipped by its place among the templates."""
    folder, path = shipped("templates").resolve(), Path(file).resolve()
    return SHIPPED + path.relative_to(folder).as_posix() if path.is_relative_to(folder) else file


def located(label: str) -> Path:
    """The file that a label means.

    >>> located("kernels/mine.cu.j2").as_posix()
    'kernels/mine.cu.j2'
    """
    if label.startswith(SHIPPED):
        return shipped("templates") / label.removeprefix(SHIPPED)
    return Path(label)


def with_directives(text: str) -> str:
    """The rendered text with its marks turned into ``#line`` directives, as few as will do."""
    lines: list[str] = []
    expected: tuple[str, int] | None = None
    is_continued = False
    for line, place in placed_lines(text):
        if not lines and not line:
            continue
        if place != expected and not is_continued:
            lines += bridge(expected, place)
            expected = place
        lines.append(line)
        # What a reader of the directives takes the next line for.
        expected = (expected[0], expected[1] + 1) if expected else None
        is_continued = line.endswith("\\")
    return "\n".join(lines).rstrip("\n") + "\n"


def placed_lines(text: str) -> list[tuple[str, tuple[str, int]]]:
    """Each line and its place; all lines of one expression have that of the line it stands in."""
    found: list[tuple[str, tuple[str, int]]] = []
    place = ("", 1)
    for raw in reversed(text.removesuffix("\n").split("\n")):
        mark = MARK.search(raw)
        place = (mark[1], int(mark[2])) if mark else place
        found.append((MARK.sub("", raw).rstrip(), place))
    return found[::-1]


def bridge(expected: tuple[str, int] | None, place: tuple[str, int]) -> list[str]:
    """What stands between two lines that do not follow each other: blank lines or a directive."""
    if expected is not None and expected[0] == place[0]:
        gap = place[1] - expected[1]
        if 0 < gap <= LONGEST_GAP:
            return [""] * gap
    return [f'#line {place[1]} "{place[0]}"']


def bare(source: str) -> str:
    """The source with its ``#line`` directives blanked: equal for equal kernels, line for line."""
    return "\n".join("" if LINE.fullmatch(line) else line for line in source.split("\n"))


def origin(source: str, number: int) -> Origin | None:
    """Where line ``number`` (from 1) of a rendered source came from.

    >>> origin('#line 7 "a.cu.j2"\\nint x;\\nint y;', 3)
    Origin(file='a.cu.j2', line=8)
    """
    lines = source.split("\n")[:number]
    for back, line in enumerate(reversed(lines)):
        found = LINE.fullmatch(line)
        if found:
            return Origin(found[2], max(1, int(found[1]) + back - 1))
    return None


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
