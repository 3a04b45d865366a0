"""The kernels by which units wait for each other: rendered, compiled, small."""

from __future__ import annotations

import re

import pytest

from graphc.ir import Await, Awaited, Begin, Join, Op, Signal
from graphc.kernels.compile import OPTIONS
from graphc.kernels.render import bare
from graphc.kernels.signals import AWAIT, BEGIN, MOST, SIGNAL, rendered, signal_image, width

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


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("most", [1, 8, 64])
def test_a_signal_takes_next_to_nothing_of_a_multiprocessor(most: int, arch: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    source = bare(rendered(SIGNAL, most).source)
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"units.cu", 0, [], [])
    assert not int(error)
    options = [each.encode() for each in (*OPTIONS, f"-arch={arch}", "--ptxas-options=-v")]
    assert not int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0])
    log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
    nvrtc.nvrtcGetProgramLog(program, log)
    used = {name: int(number) for name, number in REGISTERS.findall(log.decode())}
    if arch == "sm_90a":
        assert used[SIGNAL] <= 8
        assert used[BEGIN] <= 8
    assert used[AWAIT] <= 24
    assert "bytes smem" not in log.decode()
