"""What the machine or the driver refuses: the message says what, where, why, and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver
from small_plan import KERNELS, small_plan

from graphc.backends.cuda import CudaGraph
from graphc.plan import Launch, Plan
from graphc.text.diagnostics import CudaError, Span, SpecError

X = np.ones((10, 8), np.float32)
FAULTS = ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_MISALIGNED_ADDRESS"]


class Broken(RecordingDriver):
    """Calls of some names fail, from when ``error`` is set; a fault on a GPU ends all of them."""

    def __init__(self, *names: str, error: str | None = None, **options: Any) -> None:
        super().__init__(kernels=KERNELS, **options)
        self.names_that_fail, self.error = names, error

    def note(self, name: str, *arguments: Any) -> None:
        super().note(name, *arguments)
        if self.error and name in self.names_that_fail:
            raise CudaError(f"cu{name.title()}", self.error, "as the driver says it")


def with_cubins(plan: Plan, cubin: str = "eA==") -> Plan:
    images = {key: replace(image, cubins={"sm_90a": cubin}) for key, image in plan.images.items()}
    schedule = plan.variants[0].schedule
    ops = tuple(replace(op, span=Span("small.yaml", 7, 3)) for op in schedule.program.ops)
    program = replace(schedule.program, ops=ops)
    variant = replace(plan.variants[0], schedule=replace(schedule, program=program))
    return replace(plan, images=images, variants=(variant, *plan.variants[1:]))


def refusal(driver: RecordingDriver, plan: Plan | None = None, **options: Any) -> CudaError:
    def use() -> None:
        with CudaGraph(with_cubins(plan or small_plan()), driver=driver, **options) as graph:
            graph.launch()

    with pytest.raises(CudaError) as caught:
        use()
    assert caught.value.exit_code == 3
    assert not driver.leaks()
    return caught.value


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_while_kernels_run_says_what_it_means_and_what_to_do(fault: str) -> None:
    driver = Broken("synchronize", "synchronize_context", "launch_graph", "fill")
    graph = CudaGraph(with_cubins(small_plan()), driver=driver)
    graph.bind(x=X)
    graph.launch()
    driver.error = fault
    uses = {
        "synchronize": graph.synchronize,
        "launch": graph.launch,
        "launch anew": lambda: graph.launch(count=3),
        "numpy": lambda: graph["out"].numpy(),
        "bind": lambda: graph.bind(x=X),
        "upload": graph.upload,
        "time_ops": graph.time_ops,
    }
    for use in uses.values():
        with pytest.raises(CudaError, match=f"{fault}: a kernel .*as the driver says it") as caught:
            use()
        hint = str(caught.value.hint)
        assert "kernels of plan 'small' (add, affine)" in hint
        assert "start a new one, and run it under compute-sanitizer" in hint
        assert hint in str(caught.value)
    graph.close()  # whatever the driver says
    assert graph.is_closed


def test_a_fault_is_what_leaves_the_with_block() -> None:
    driver = Broken("synchronize", "synchronize_context")

    def use() -> None:
        with CudaGraph(with_cubins(small_plan()), driver=driver) as graph:
            graph.launch()
            driver.error = "CUDA_ERROR_ILLEGAL_ADDRESS"
            graph.synchronize()

    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        use()


def test_other_errors_are_no_faults_of_kernels() -> None:
    driver = Broken("synchronize")
    with CudaGraph(with_cubins(small_plan()), driver=driver) as graph:
        driver.error = "CUDA_ERROR_UNKNOWN"
        with pytest.raises(CudaError) as caught:
            graph.synchronize()
        driver.error = None
    assert caught.value.hint is None


@pytest.mark.parametrize(
    "error", ["CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_NOT_FOUND"]
)
def test_code_that_is_no_code_names_its_kernel(error: str) -> None:
    found = refusal(Broken("load_library", error=error))
    assert (found.op, found.span) == ("affine/piece.0", Span("small.yaml", 7, 3))
    assert "the code of kernel 'affine' (entry 'affine') cannot be loaded on GPU 1" in str(found)
    assert "as the driver says it" in found.explanation
    assert found.hint == "compile the plan again: its cubin is damaged, or made for another GPU"


def test_cubins_that_are_not_in_base_64_are_a_bad_plan() -> None:
    driver = RecordingDriver(kernels=KERNELS)
    for cubin in ("no base 64!", "eA="):
        with pytest.raises(SpecError, match="the sm_90a cubin of kernel 'affine' is not in") as bad:
            CudaGraph(with_cubins(small_plan(), cubin), driver=driver)
        assert bad.value.diagnostics[0].code == "bad-plan"
    assert not driver.leaks()


def test_no_room_says_for_what_where_how_much_is_left_and_what_to_do() -> None:
    found = refusal(RecordingDriver(kernels=KERNELS, nbytes=900))
    assert found.error == "CUDA_ERROR_OUT_OF_MEMORY"
    assert "320 bytes for " in found.explanation
    assert "do not fit on GPU 0 (Fake GPU)" in found.explanation
    assert "of 900 bytes are free" in found.explanation
    assert "fewer rows" in str(found.hint)


def test_no_room_on_the_host_is_said_as_well() -> None:
    found = refusal(Broken("allocate_host", error="CUDA_ERROR_OUT_OF_MEMORY"))
    assert "320 bytes for 'down' do not fit on the host" in found.explanation
    assert "fewer rows" in str(found.hint)


def test_a_gpu_that_is_too_old_is_named_with_the_op() -> None:
    found = refusal(RecordingDriver(kernels=KERNELS), small_plan(min_capability=100))
    assert (found.error, found.op) == ("GPU_TOO_OLD", "affine/piece.0")
    assert found.span == Span("small.yaml", 7, 3)
    assert "kernel 'affine' needs compute capability 10.0; GPU 1 (Fake GPU) has 9.0" in str(found)
    assert "newer GPU" in str(found.hint)


def test_more_shared_memory_than_there_is_names_both_numbers() -> None:
    plan = small_plan()
    images = {
        key: replace(image, launch=replace(image.launch, shared="300000"))
        for key, image in plan.images.items()
    }
    found = refusal(RecordingDriver(kernels=KERNELS), replace(plan, images=images))
    assert "kernel 'affine' asks for 300,000 bytes" in found.explanation
    assert "may have 232,448" in found.explanation
    assert "smaller tiles" in str(found.hint)


def cooperative(blocks: int) -> Plan:
    plan = small_plan()
    images = {
        key: replace(image, launch=Launch((str(blocks),), ("256",), is_cooperative=True))
        for key, image in plan.images.items()
    }
    return replace(plan, images=images)


def test_cooperative_blocks_that_have_no_room_at_once_are_counted() -> None:
    """A multiprocessor of the fake holds 2,048 threads, so that its GPU holds 132 * 8 blocks."""
    driver = RecordingDriver(kernels=KERNELS)
    with CudaGraph(with_cubins(cooperative(132 * 8)), driver=driver) as graph:
        graph.launch()
    found = refusal(RecordingDriver(kernels=KERNELS), cooperative(132 * 8 + 1))
    assert (found.error, found.op) == ("TOO_MANY_BLOCKS", "affine/piece.0")
    assert found.span == Span("small.yaml", 7, 3)
    assert "cooperative kernel 'affine' has 1,057 blocks of 256 threads" in found.explanation
    assert "holds 1,056 of them at once, 8 on each of 132 multiprocessors" in found.explanation
    assert "'blocks' in the schedule" in str(found.hint)


@pytest.mark.parametrize(
    ("peers", "why"), [("lie", "wrong bytes arrived"), ("refused", "offers no peer access")]
)
def test_peers_that_do_not_deliver_are_named_by_pair(peers: Any, why: str) -> None:
    plan = small_plan(p2p=True)
    driver = RecordingDriver(kernels=KERNELS, peers=peers)
    found = refusal(driver, replace(plan, variants=plan.variants[:1]))
    assert found.error == "NO_ROUTE"
    assert "no variant of plan 'small' fits this machine" in found.explanation
    assert "p2p: peer_copy from peer to primary: GPU 1 to GPU 0" in found.explanation
    assert why in found.explanation
    assert "such as host; 'graphc doctor'" in str(found.hint)


def test_no_gpu_at_all_says_what_to_use() -> None:
    found = refusal(RecordingDriver(gpus=0))
    assert found.error == "NO_GPU"
    assert "use the reference backend" in str(found)
