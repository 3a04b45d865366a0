"""One kernel template, compiled, loaded and launched by itself on the first GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphc.backends.cuda.kernels import scalars as scalar_arguments
from graphc.gpu.protocol import Dim, Driver, KernelCall
from graphc.ir import Buffer
from graphc.kernels.bind import bind
from graphc.kernels.call import Argument
from graphc.kernels.compile import compile_image
from graphc.kernels.contract import load_contract
from graphc.kernels.render import image
from graphc.text.diagnostics import NOWHERE
from graphc.text.expr import Record, evaluate_number

TEMPLATES = Path(__file__).parent.parent / "templates"


class LoadedKernel:
    """A kernel bound to buffers of the given dtypes and shapes.

    ``path`` renders it for another architecture than the GPU's: 80 takes the mma.sync path of the
    matrix kernels on any GPU from there. ``templates`` is another folder than the shipped one.
    """

    def __init__(
        self,
        driver: Driver,
        name: str,
        buffers: Mapping[str, tuple[str, tuple[int, ...]]],
        *,
        options: Mapping[str, Any] | None = None,
        scalars: Mapping[str, int] | None = None,
        path: int | None = None,
        templates: Path = TEMPLATES,
    ) -> None:
        self.driver, self.facts = driver, driver.device(0)
        self.path = path or self.facts.capability
        contract = load_contract(templates / f"{name}.cu.j2")
        given = {
            each: Argument(Buffer(each, "gpu", kind, shape))
            for each, (kind, shape) in buffers.items()
        }
        self.bound = bind(
            contract, given, options=options or {}, scalars=scalars or {}, span=NOWHERE
        )
        dtypes = {each: kind for each, (kind, _) in buffers.items()}
        self.image = image(contract, self.bound.kernel, dtypes, self.path)
        arch = f"sm_{self.facts.capability}{'a' if self.facts.capability == 90 else ''}"
        library = driver.load_library(compile_image(self.image, arch))
        kernel = driver.kernel(library, self.image.entry)
        shared = self.evaluated(self.image.launch.shared, 0, 1, 0)
        if shared > 48 * 1024:
            driver.allow_shared(kernel, 0, shared)
        self.function = driver.function(kernel)

    def evaluated(self, text: Any, lo: int, hi: int, blocks: int) -> int:
        kernel = self.bound.kernel
        device = Record({"sms": self.facts.sms, "shared_optin": self.facts.shared_optin})
        scope = {**kernel.symbols, **kernel.options, "lo": lo, "hi": hi, "blocks": blocks}
        return int(evaluate_number(text, {**scope, "arch": self.path, "device": device}))

    def cluster(self, lo: int, hi: int, blocks: int) -> Dim | None:
        extents = self.image.launch.cluster
        return (self.evaluated(extents[0], lo, hi, blocks), 1, 1) if extents else None

    def launch(
        self,
        pointers: Mapping[str, int],
        *,
        piece: int = 0,
        of: int = 1,
        blocks: int = 0,
        stream: int = 0,
    ) -> None:
        """Launch piece ``piece`` of ``of`` equal ones."""
        extent = self.bound.axis.extent
        lo, hi = extent * piece // of, extent * (piece + 1) // of
        launch = self.image.launch
        grid = max(1, self.evaluated(launch.grid[0], lo, hi, blocks))
        call = KernelCall(
            function=self.function,
            grid=(grid, 1, 1),
            block=(self.evaluated(launch.block[0], lo, hi, blocks), 1, 1),
            shared=self.evaluated(launch.shared, lo, hi, blocks),
            cluster=self.cluster(lo, hi, blocks),
            arguments=(
                *(("P", pointers.get(name, 0)) for name in self.image.pointers),
                *scalar_arguments(self.image, self.bound.kernel),
                ("P", 0),
                ("i", extent),
                ("i", piece),
                ("i", piece + 1),
                ("i", of),
                ("i", piece),
            ),
        )
        self.driver.launch(call, stream)
