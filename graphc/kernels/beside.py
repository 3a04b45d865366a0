"""The module of a kernel's reference: from beside its template, else as Python imports it.

``reference: clip:clip`` of ``kernels/clip.cu.j2`` may be in ``kernels/clip.py``; so may
``kernels.clip:clip``, as it is called in the folder that holds ``kernels``. What lies there comes
before what is importable, so that the command needs no path to it. A plan remembers where its
templates lay; where they are gone, the module has to be importable.
"""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from graphc.plan import KernelImage

SUFFIXES = (".cu.j2", ".yaml")
SHIPPED = "graphc:"  # the folder of shipped templates, as sources name it


def home(image: KernelImage) -> Path | None:
    """The folder of the user's template, as its ``#line`` directives have it; None if unknown."""
    names = [f"{image.template}{suffix}" for suffix in SUFFIXES]
    for line in image.source.splitlines():
        file = line.split('"')[1] if line.startswith("#line ") and '"' in line else ""
        if Path(file).name in names and not file.startswith(SHIPPED):
            return Path(file).parent
    return None


def module_named(name: str, folder: Path | None) -> ModuleType:
    """The module: that of the template's folder or of the one above, else the importable one."""
    parts = name.split(".")
    is_ours = parts[0] == "graphc" or not all(part.isidentifier() for part in parts)
    for base in () if folder is None or is_ours else (folder, folder.absolute().parent):
        file = base.joinpath(*parts).with_suffix(".py")
        if file.is_file():
            known = getattr(sys.modules.get(name), "__file__", None)
            if known is not None and Path(known).resolve() == file.resolve():
                break  # imported already
            return module_at(str(file.resolve()), file.stat().st_mtime_ns, str(base.resolve()))
    return importlib.import_module(name)


@lru_cache(maxsize=64)
def module_at(file: str, mtime_ns: int, base: str) -> ModuleType:
    """The module of a file, under a name of its own; ``base`` is importable while it is run."""
    name = f"beside a template: {file}"
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, base)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(base)
    return module
