"""What a command was asked to compile: a spec and its values, or a plan that was saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.output import note
from graphc.text.diagnostics import UsageError, error, render
from graphc.text.words import Value, value_of

if TYPE_CHECKING:
    from graphc.pipeline import Observer
    from graphc.plan import Plan
    from graphc.profiles import ProfileSpec

ORIGIN = "--set {name}={value}"  # what messages call the place of a value of the command line


@dataclass(frozen=True, slots=True)
class Request:
    """A file, and all that the command line says about it."""

    path: Path
    values: Mapping[str, Value]
    preset: str | None = None
    schedule: Path | None = None
    kernels: tuple[Path, ...] = ()
    routes: tuple[Path, ...] = ()

    def with_values(self, values: Mapping[str, Value]) -> Request:
        return replace(self, values={**self.values, **values})

    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``graphc.api.compile`` and ``check``."""
        return {
            "preset": self.preset,
            "schedule": self.schedule,
            "kernels": self.kernels,
            "routes": self.routes,
            "origin": ORIGIN,
            **self.values,
        }


def request(
    path: Path,
    *,
    values: Sequence[str] | None = None,
    preset: str | None = None,
    schedule: Path | None = None,
    kernels: Sequence[Path] | None = None,
    routes: Sequence[Path] | None = None,
) -> Request:
    """A request from the words of the command line; a file that is missing is named at once."""
    from graphc.resources import spec_path

    path = spec_path(path)
    for each in (path, *([schedule] if schedule else [])):
        if not each.is_file():
            what = "is a folder" if each.is_dir() else "there is no such file"
            is_shipped = spec_path(each.stem) != Path(each.stem)
            hint = f"graphc brings a spec of that name: write {each.stem}" if is_shipped else None
            raise error("missing-file", f"cannot read '{each}': {what}", hint=hint)
    for what, folders in (("kernels", kernels), ("routes", routes)):
        for folder in folders or ():
            if not folder.is_dir():
                raise UsageError(f"{what}: there is no folder '{folder}'")
    return Request(
        path,
        dict(assignment(each) for each in values or ()),
        preset,
        schedule,
        tuple(kernels or ()),
        tuple(routes or ()),
    )


def one_entry(names: Sequence[str] | None) -> str | None:
    """The entry that is named, if any: of several, none would be the one that is meant."""
    if names is not None and len(names) > 1:
        raise UsageError(
            f"--entry is given {len(names)} times ({', '.join(names)}): name one; "
            "'graphc run' launches several"
        )
    return names[0] if names else None


# What the library takes by keyword beside the values; a param of such a name cannot be set there.
RESERVED = (
    "arch", "cubins", "kernels", "observe", "origin", "path", "preset", "routes", "schedule",
)  # fmt: skip


def assignment(word: str) -> tuple[str, Value]:
    """
    >>> assignment("pieces=4"), assignment("compute.pieces=[1/4, 3/4]")
    (('pieces', 4), ('compute.pieces', ['1/4', '3/4']))
    """
    name, equals, value = word.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"expected name=value, found '{word}'")
    if name.strip() in RESERVED:
        raise UsageError(
            f"'{name.strip()}' is no param: it is an option of the command, see --help"
        )
    return name.strip(), value_of(value.strip())


def is_plan(path: Path) -> bool:
    """Whether the file is a plan that ``compile`` wrote, and not a spec."""
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    return start.startswith(b"{") and b'"graphc_plan"' in path.read_bytes()


def refuse_plan(wanted: Request, command: str) -> None:
    """Say what takes a plan, where only a spec will do."""
    if is_plan(wanted.path):
        raise UsageError(
            f"'{wanted.path}' is a plan, compiled and proven already: 'graphc run' and "
            f"'graphc show' take it, 'graphc {command}' takes the spec that it was made of"
        )


def plan_of(wanted: Request, *, observe: Observer | None = None, cubins: bool = True) -> Plan:
    """Load the plan, or compile the spec."""
    from graphc import api
    from graphc.pipeline import ignore

    if is_plan(wanted.path):
        refuse_values(wanted)
        return api.load(wanted.path)
    return api.compile(wanted.path, observe=observe or ignore, cubins=cubins, **wanted.options())


def refuse_values(wanted: Request) -> None:
    given = [
        *(["--set"] if wanted.values else []),
        *(["--preset"] if wanted.preset else []),
        *(["--schedule"] if wanted.schedule else []),
        *(["--kernels"] if wanted.kernels else []),
        *(["--routes"] if wanted.routes else []),
    ]
    if given:
        raise UsageError(
            f"'{wanted.path}' is a plan, compiled already: {', '.join(given)} needs the spec"
        )


def profile_of(wanted: Request, machine: str | Path) -> ProfileSpec:
    """The machine's profile; what it says of kernels that are not here is warned of."""
    from graphc.kernels.contract import Catalog
    from graphc.profiles import load_profile, unknown_kernels
    from graphc.resources import kernel_folders

    profile = load_profile(machine)
    for each in unknown_kernels(profile, Catalog(kernel_folders(wanted.kernels)).names()):
        note(render(each, weight="warning"))
    return profile
