"""The machine at hand as a bench: specs are compiled, placed, and timed by the CUDA backend."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from graphc import api
from graphc.calibrate.measure import Times
from graphc.gpu import open_driver
from graphc.gpu.probe import peer_facts
from graphc.gpu.protocol import DeviceFacts, Driver
from graphc.inputs import filled_buffers, random_array
from graphc.ir import Buffer
from graphc.text.diagnostics import CudaError

if TYPE_CHECKING:
    from graphc.backends.cuda import CudaGraph

ROUNDS = 5
REPLAYS = 15
LAUNCHES = 30
RANDOM_ROWS_NBYTES = 256 << 20  # what is made at random; longer arrays repeat it


class CudaBench:
    """See ``graphc.calibrate.measure.Bench``."""

    def __init__(self, driver: Driver | None = None) -> None:
        self.driver = driver or open_driver()
        count = self.driver.device_count()
        if not count:
            raise CudaError("calibrate", "NO_DEVICE", "there is no GPU to measure")
        self.gpus: tuple[DeviceFacts, ...] = tuple(self.driver.device(at) for at in range(count))
        pair = peer_facts(self.driver, 0, 1) if count > 1 else None
        self.has_peer = pair is not None and pair.copies and pair.reads and pair.writes
        self.arrays: dict[str, Any] = {}  # of the layer: made once
        version = self.driver.version()
        named = f"{count} {self.gpus[0].name}" if count > 1 else self.gpus[0].name
        self.about = f"{named}, driver for CUDA {version // 1000}.{version % 1000 // 10}"

    def ops(
        self,
        spec: str | Path,
        devices: Sequence[int],
        counts: Sequence[int | None] = (None,),
        **values: Any,
    ) -> list[Times]:
        with self.graph(spec, devices, **values) as graph:
            return [
                {each.op: each.us for each in graph.time_ops(rounds=ROUNDS, count=count)}
                for count in counts
            ]

    def replay(self, spec: str | Path, devices: Sequence[int], **values: Any) -> float:
        with self.graph(spec, devices, **values) as graph:
            graph.launch()
            graph.synchronize()
            return median(graph.time_replays(rounds=REPLAYS))

    def launch(self, spec: str | Path, devices: Sequence[int]) -> float:
        spent = []
        with self.graph(spec, devices) as graph:
            for _ in range(LAUNCHES):
                start = perf_counter_ns()
                graph.launch()
                spent.append((perf_counter_ns() - start) / 1e3)
                graph.synchronize()
        return median(spent)

    def bind_random(self, graph: CudaGraph) -> None:
        """Random values: the routing is even, and arithmetic takes the power that it takes."""
        for buffer in filled_buffers(graph.program):
            if buffer.name not in self.arrays:
                self.arrays[buffer.name] = repeated(buffer)
            graph.bind({buffer.name: self.arrays[buffer.name]})

    @contextmanager
    def graph(self, spec: str | Path, devices: Sequence[int], **values: Any) -> Iterator[CudaGraph]:
        from graphc.backends.cuda import CudaGraph

        with as_file(spec) as path:
            plan = api.compile(path, **values)
        graph = CudaGraph(plan, devices=list(devices), driver=self.driver)
        try:
            if isinstance(spec, Path):
                self.bind_random(graph)
            yield graph
        finally:
            graph.close()


@contextmanager
def as_file(spec: str | Path) -> Iterator[Path]:
    """The file itself, or one with the text for as long as it is needed."""
    if isinstance(spec, Path):
        yield spec
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibrate.yaml"
        path.write_text(spec, encoding="utf-8")
        yield path


def repeated(buffer: Buffer) -> Any:
    """Random rows, and these again where there are more: long arrays would take long to make."""
    import numpy as np

    rows = max(1, min(buffer.rows, RANDOM_ROWS_NBYTES // max(1, buffer.row_nbytes)))
    some = random_array(replace(buffer, shape=(rows, *buffer.shape[1:]), per_count=0))
    return some if rows == buffer.rows else np.resize(some, buffer.shape)
