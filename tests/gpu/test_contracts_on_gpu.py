"""Kernels on the GPU keep to their contracts, and do what their references do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from kernel_cases import CASES, Call, Case, Guarded, Lent, hold_to_contract, run_reference, same

from graphc.backends.cuda.kernels import Kernels, kernel_call
from graphc.backends.cuda.memory import Gpu
from graphc.gpu import open_driver
from graphc.gpu.probe import current
from graphc.gpu.protocol import Driver
from graphc.ir import Op
from graphc.kernels.render import image

SLACK = 512  # bytes around an argument, so that it can lie at the alignment it has on the host


def tuple_of(lent: Lent) -> tuple[Guarded, ...]:
    if lent is None:
        return ()
    return lent if isinstance(lent, tuple) else (lent,)


class Bench:
    """Runs one piece of a kernel at a time over copies of its guarded arguments."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.gpu = Gpu(driver.device(0), driver.retain_context(0))
        with current(driver, self.gpu.context):
            self.gpu.count_word = driver.allocate(4)
            self.stream = driver.create_stream(0)

    def run(self, call: Call, arguments: Mapping[str, Lent]) -> None:
        arrays = {name: tuple_of(each) for name, each in arguments.items()}
        with current(self.driver, self.gpu.context):
            lent = {name: [self.lend(each) for each in own] for name, own in arrays.items()}
            try:
                self.launch(
                    call, {name: [data for _, _, data in own] for name, own in lent.items()}
                )
                for name, own in lent.items():
                    for each, (_, raw, _) in zip(arrays[name], own, strict=True):
                        self.driver.read(each.raw.ctypes.data, raw, each.raw.nbytes)
            finally:
                for own in lent.values():
                    for block, _, _ in own:
                        self.driver.free(block)

    def lend(self, each: Guarded) -> tuple[int, int, int]:
        """The allocation, where the raw bytes begin in it, and where the data does."""
        block = self.driver.allocate(each.raw.nbytes + SLACK)
        raw = block + (each.raw.ctypes.data - block) % 256
        self.driver.write(raw, each.raw.ctypes.data, each.raw.nbytes)
        return block, raw, raw + each.start

    def launch(self, call: Call, addresses: Mapping[str, Sequence[int]]) -> None:
        case = call.case
        dtypes = {name: case.dtype_of(name) for name in case.given}
        rendered = image(case.contract, case.call, dtypes, self.gpu.facts.capability)
        op = Op(str(case), str(case), "gpu", case.call, (), case.axis, case.pieces[call.piece])
        kernels = Kernels(self.driver, {rendered.key: rendered})
        function = kernels.load(rendered.key, self.gpu, op)
        launch = kernel_call(
            op,
            rendered,
            self.gpu,
            function=function,
            pointers=[
                (f"{rendered.tables[name]}Q", tuple(addresses[name]) or (0,) * ranks)
                if (ranks := rendered.tables.get(name))
                else ("Q", next(iter(addresses[name]), 0))
                for name in rendered.pointers
            ],
            capacity=None if case.count is None else case.axis.extent,
            priority=0,
        )
        kernels.allow_shared(rendered.key, self.gpu, launch.shared)
        if case.count is not None:
            self.set_count(case.count)
        self.driver.launch(launch, self.stream)
        self.driver.synchronize(self.stream)
        kernels.release()

    def set_count(self, count: int) -> None:
        import numpy as np

        word = np.array([count], np.int32)
        self.driver.write(self.gpu.count_word, word.ctypes.data, word.nbytes)

    def close(self) -> None:
        with current(self.driver, self.gpu.context):
            self.driver.free(self.gpu.count_word)
            self.driver.destroy_stream(self.stream)
        self.driver.release_context(0)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    opened = Bench(open_driver())
    yield opened
    opened.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_keeps_to_its_contract_and_means_its_reference(case: Case, bench: Bench) -> None:
    same(case, hold_to_contract(case, run_reference), hold_to_contract(case, bench.run))
