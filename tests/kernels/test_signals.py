"""The kernels by which units wait for each other: rendered, compiled, small."""

from __future__ import annotations

import re

import pytest

import graphc
from graphc.ir import Await, Awaited, Begin, Join, Kernel, Op, Signal
from graphc.kernels.compile import OPTIONS
from graphc.kernels.render import bare
from graphc.kernels.signals import AWAIT, BEGIN, MOST, SIGNAL, rendered, signal_image, width
from graphc.text.expr import Record, evaluate_number

MOST_REGISTERS = 32  # of a thread of a signal or an await
PRODUCTS = ("grouped_up", "grouped_down", "dense", "dense_up")
REGISTERS = re.compile(r"Compiling entry function '(\w+)'(?:.|\n)*?Used (\d+) registers")


def op(work: object) -> Op:
    return Op("a", "a", "gpu0", work, ())  # type: ignore[arg-type]


def test_each_has_its_kernel_and_others_have_none() -> None:
    awaited = tuple(Awaited(f"s{at}", "gpu1", "step") for at in range(5))
    found = [signal_image(op(work)) for work in (Begin(), Signal("s", ("gpu1",)), Await(awaited))]
    assert [each and each.entry for each in found] == [BEGIN, SIGNAL, AWAIT]
    assert [each and each.launch.block for each in found] == [("1",), ("1",), ("8",)]
    assert signal_image(op(Join())) is None


@pytest.mark.parametrize("words", [1, 2, 5, 32, 64, 65, 1000])
def test_a_launch_holds_as_many_words_as_there_are_up_to_the_most(words: int) -> None:
    assert min(words, MOST) <= width(words) <= MOST
    assert int(rendered(AWAIT, width(words)).launch.block[0]) <= 32


def registers(source: str, arch: str) -> dict[str, int]:
    """Registers a thread of each kernel, as the assembler tells; without static shared memory."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    error, program = nvrtc.nvrtcCreateProgram(bare(source).encode(), b"kernel.cu", 0, [], [])
    assert not int(error)
    options = [each.encode() for each in (*OPTIONS, f"-arch={arch}", "--ptxas-options=-v")]
    assert not int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0])
    log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
    nvrtc.nvrtcGetProgramLog(program, log)
    assert "bytes smem" not in log.decode()
    return {name: int(number) for name, number in REGISTERS.findall(log.decode())}


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("most", [1, 8, 64])
def test_a_signal_takes_next_to_nothing_of_a_multiprocessor(most: int, arch: str) -> None:
    used = registers(rendered(SIGNAL, most).source, arch)
    assert {BEGIN, SIGNAL, AWAIT} <= {*used}
    assert max(used.values()) <= MOST_REGISTERS


def test_a_signal_and_an_await_have_room_beside_every_product() -> None:
    """A multiprocessor of sm_90 has 16,384 registers in each quarter, which go to warps by 256, and
    233,472 bytes of shared memory, of which every block costs 1,024 more than it asks for."""
    plan = graphc.compile("moe_peer", preset="full", arch="sm_90a", cubins=False)
    images = {each.template: each for each in plan.images.values()}
    products = {
        work.template: work
        for op in plan.variants[0].schedule.program
        if isinstance(work := op.work, Kernel) and work.template in PRODUCTS
    }
    assert {*products} == {*PRODUCTS}
    for name, work in products.items():
        image = images[name]
        (used,) = registers(image.source, "sm_90a").values()
        scope = {**work.symbols, **work.options, "arch": 90, "device": Record({"sms": 132})}
        threads, shared = (
            evaluate_number(each, scope) for each in (image.launch.block[0], image.launch.shared)
        )
        warps_a_quarter = threads // 32 // 4
        assert 16_384 - warps_a_quarter * 32 * used >= 32 * MOST_REGISTERS, name
        assert 233_472 - (1_024 + shared) >= 1_024, name
