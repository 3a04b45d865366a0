"""The CUDA backend on real GPUs: bits, counts, bindings, read-back, errors, host time."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_plan import expected, small_plan

from graphc.backends.cuda import CudaGraph
from graphc.gpu import open_driver
from graphc.gpu.probe import current, doctor_facts, gpu_count, peer_facts
from graphc.ir import Emit, Extern, Role
from graphc.plan import Launch, Plan
from graphc.text.diagnostics import CudaError, UsageError

TOKENS = 1000
X = np.random.default_rng(1).standard_normal((TOKENS, 8), dtype=np.float32)
PLACES = [pytest.param([0, 0], id="one"), pytest.param([0, 1], id="two")]


@pytest.fixture(params=PLACES)
def devices(request: pytest.FixtureRequest) -> list[int]:
    if max(request.param) >= gpu_count():
        pytest.skip("needs two GPUs")
    return request.param


def make(devices: list[int], plan: Plan | None = None, **options: Any) -> CudaGraph:
    return CudaGraph(plan or small_plan(tokens=TOKENS, **options), devices=devices)


def same(graph: CudaGraph, wanted: np.ndarray, used: int = TOKENS) -> bool:
    return bool(np.array_equal(graph["out"].numpy()[:used], wanted[:used]))


@pytest.mark.parametrize("p2p", [False, True])
@pytest.mark.parametrize("pieces", [1, 3, 64])
@pytest.mark.parametrize("emit", list(Emit))
def test_every_emission_gives_the_same_bytes(
    devices: list[int], emit: Emit, pieces: int, p2p: bool
) -> None:
    with make(devices, emit=emit, pieces=pieces, p2p=p2p) as graph:
        graph.bind(x=X)
        for _ in range(5):
            graph["out"].write(np.zeros_like(X))
            graph.poison()
            graph.launch()
            assert same(graph, expected(X))
        if emit is not Emit.STREAMS:
            found = graph.read_back()
            assert found.nodes == 5 * pieces


@pytest.mark.parametrize("tokens", [TOKENS, 20])
@pytest.mark.parametrize("emit", list(Emit))
def test_the_count_changes_from_launch_to_launch(
    devices: list[int], emit: Emit, tokens: int
) -> None:
    with make(devices, small_plan(tokens=tokens, emit=emit, pieces=32)) as graph:
        graph.bind(x=X[:tokens])
        for count in (tokens, 3, 0, tokens // 2, 1, tokens - 1, None):
            used = tokens if count is None else count
            graph["out"].write(np.zeros_like(X[:tokens]))
            graph.poison()
            graph.launch(count=count)
            assert same(graph, expected(X), used)
            assert not graph["out"].numpy()[used:].any()


def test_counts_are_ordered_by_the_stream_without_waiting(devices: list[int]) -> None:
    with make(devices) as graph:
        graph.bind(x=X)
        graph["out"].write(np.zeros_like(X))
        for count in (TOKENS, 500, 10):
            graph.launch(count=count)
        assert same(graph, expected(X))


def test_arrays_of_torch_and_cupy_are_used_in_place(devices: list[int]) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X).cuda(0)
    out = torch.zeros_like(x)
    with make(devices) as graph:
        graph.bind(x=x, out=out)
        stream = torch.cuda.Stream(0)
        graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(out.cpu().numpy(), expected(X))
        again = -x
        torch.cuda.synchronize()
        graph.bind(x=again)
        graph.launch(torch.cuda.current_stream(0))
        torch.cuda.synchronize()
        assert np.array_equal(out.cpu().numpy(), expected(-X))
        seen = torch.from_dlpack(graph["out"])
        assert seen.data_ptr() == out.data_ptr()
        assert seen.device == out.device
        del seen
        if gpu_count() > 1:
            other = x.to("cuda:1")
            with pytest.raises(UsageError, match=r"memory of GPU 0 .* found memory of GPU 1"):
                graph.bind(x=other)
        with pytest.raises(UsageError, match="found memory of the host"):
            graph.bind(x=x.cpu())
        with pytest.raises(UsageError, match="expected dtype f32, found bf16"):
            graph.bind(x=x.bfloat16())
        with pytest.raises(UsageError, match="expected an address that 16 divides"):
            graph.bind(x=torch.zeros(X.size + 4, device="cuda:0")[1 : X.size + 1].view(X.shape))
    gc.collect()


def test_bf16_of_torch_is_no_f16(devices: list[int]) -> None:
    torch = pytest.importorskip("torch")
    plan = small_plan(tokens=TOKENS)
    variant = plan.variants[0]
    program = variant.schedule.program
    buffers = {**program.buffers, "x": replace(program.buffers["x"], dtype="bf16")}
    schedule = replace(variant.schedule, program=replace(program, buffers=buffers))
    with make(devices, replace(plan, variants=(replace(variant, schedule=schedule),))) as graph:
        graph.bind(x=torch.zeros(X.shape, dtype=torch.bfloat16, device="cuda:0"))
        graph.bind(x=torch.zeros(X.shape, dtype=torch.uint16, device="cuda:0"))
        with pytest.raises(UsageError, match="expected dtype bf16, found f16"):
            graph.bind(x=torch.zeros(X.shape, dtype=torch.float16, device="cuda:0"))
        assert torch.from_dlpack(graph["x"]).dtype == torch.bfloat16


def test_page_locked_memory_is_used_in_place_for_mapped_buffers(devices: list[int]) -> None:
    torch = pytest.importorskip("torch")
    plan = small_plan(tokens=TOKENS)
    variant = plan.variants[0]
    program = variant.schedule.program
    down = replace(program.buffers["down"], role=Role.STATUS)
    schedule = replace(
        variant.schedule, program=replace(program, buffers={**program.buffers, "down": down})
    )
    with make(devices, replace(plan, variants=(replace(variant, schedule=schedule),))) as graph:
        pinned = torch.zeros(X.shape).pin_memory()
        graph.bind(x=X, down=pinned)
        graph.launch()
        assert same(graph, expected(X))
        assert np.array_equal(pinned.numpy(), X)
        with pytest.raises(UsageError, match="expected page-locked host memory"):
            graph.bind(down=torch.zeros(X.shape))


def test_cupy_arrays_on_another_gpu_are_refused(devices: list[int]) -> None:
    cupy = pytest.importorskip("cupy")
    if gpu_count() < 2:
        pytest.skip("needs two GPUs")
    with cupy.cuda.Device(1):
        array = cupy.asarray(X)

    class OnlyInterface:
        __cuda_array_interface__ = array.__cuda_array_interface__

    with make(devices) as graph:
        for other in (array, OnlyInterface()):
            with pytest.raises(UsageError, match=r"memory of GPU 0 .* found memory of GPU 1"):
                graph.bind(x=other)


def test_cupy_arrays_and_streams_work(devices: list[int]) -> None:
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Device(0), make(devices) as graph:
        x, out = cupy.asarray(X), cupy.zeros(X.shape, cupy.float32)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device(0).synchronize()
        graph.bind(x=x, out=out)
        graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(out.get(), expected(X))
        assert np.array_equal(cupy.asarray(graph["out"]).get(), expected(X))


def test_a_thread_without_a_context_can_launch(devices: list[int]) -> None:
    with make(devices) as graph:
        graph.bind(x=X)
        graph.launch()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                graph.launch()
                graph.synchronize()
            except BaseException as problem:
                failures.append(problem)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not failures
        assert same(graph, expected(X))


def test_the_callers_context_stays_current(devices: list[int]) -> None:
    driver = open_driver()
    context = driver.retain_context(gpu_count() - 1)
    with current(driver, context):
        with make(devices) as graph:
            graph.bind(x=X)
            graph.launch()
            assert same(graph, expected(X))
            assert driver.current_context() == context
        assert driver.current_context() == context
    driver.release_context(gpu_count() - 1)


CLUSTERED = """extern "C" __global__ void affine(const float* x, float* y, float plus,
    const int* count, int scale, int lo_, int hi_, int den, int piece) {
  const long long rows = *count, lo = rows * lo_ / den, hi = rows * hi_ / den;
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  for (long long i = lo * 8 + blockIdx.x * blockDim.x + threadIdx.x; i < hi * 8;
       i += gridDim.x * blockDim.x)
    y[i] = 2 * x[i] + (blocks == 2 ? plus : 99);
}"""


@pytest.mark.parametrize("is_cooperative", [False, True])
@pytest.mark.parametrize("emit", list(Emit))
def test_clusters_and_cooperative_launches_are_emitted(
    devices: list[int], emit: Emit, is_cooperative: bool
) -> None:
    plan = small_plan(tokens=TOKENS, emit=emit)
    launch = Launch(("4",), ("64",), "100 * 1024", ("2",), is_cooperative)
    affine = replace(plan.images["affine-0"], key="affine-1", source=CLUSTERED, launch=launch)
    images = {**plan.images, "affine-1": affine}
    variant = replace(plan.variants[0], images={"affine": "affine-1", "add": "add-0"})
    with make(devices, replace(plan, images=images, variants=(variant,))) as graph:
        graph.bind(x=X)
        graph.launch()
        assert same(graph, expected(X))


def refuse(stream: int, **arrays: Any) -> None:
    raise CudaError("extern", "TOLD_TO_FAIL", "in the middle of a capture")


def copy_rows(stream: int, *, source: Any, target: Any) -> None:
    from graphc.gpu.protocol import CopyCall

    open_driver().copy(CopyCall(target.pointer, source.pointer, source.nbytes), stream)


def with_extern(emit: Emit, function: str) -> Plan:
    plan = small_plan(tokens=TOKENS, pieces=1, emit=emit)
    variant = plan.variants[0]
    work = Extern(f"{__name__}:{function}", "")
    program = variant.schedule.program
    ops = tuple(replace(op, work=work) if op.name == "back" else op for op in program.ops)
    schedule = replace(variant.schedule, program=replace(program, ops=ops))
    return replace(plan, variants=(replace(variant, schedule=schedule),))


@pytest.mark.parametrize("emit", list(Emit))
def test_extern_ops_run_in_every_emission(devices: list[int], emit: Emit) -> None:
    with make(devices, with_extern(emit, "copy_rows")) as graph:
        graph.bind(x=X)
        graph.launch()
        assert same(graph, expected(X))


@pytest.mark.parametrize("emit", list(Emit))
def test_a_failed_capture_leaves_everything_usable(devices: list[int], emit: Emit) -> None:
    with make(devices, with_extern(emit, "refuse")) as graph:
        for _ in range(2):
            with pytest.raises(CudaError, match=r"TOLD_TO_FAIL.*op 'back'"):
                graph.launch()
        with make(devices) as other:
            other.bind(x=X)
            other.launch()
            assert same(other, expected(X))


def test_memory_comes_back_and_none_is_named(devices: list[int]) -> None:
    driver = open_driver()
    context = driver.retain_context(0)
    with current(driver, context):
        make(devices).close()
        before, total = driver.free_memory()
        plan = small_plan(tokens=TOKENS)
        memory = plan.variants[0].schedule.memory
        huge = tuple(
            replace(each, nbytes=2 * total) if each.name == "acc" else each
            for each in memory.allocations
        )
        schedule = replace(plan.variants[0].schedule, memory=replace(memory, allocations=huge))
        broken = replace(plan, variants=(replace(plan.variants[0], schedule=schedule),))
        with pytest.raises(CudaError, match=r"bytes for 'acc' do not fit on GPU 0 .* are free"):
            make(devices, broken)
        with make(devices, small_plan(tokens=4_000_000)) as graph:
            graph.upload()
        gc.collect()
        assert driver.free_memory()[0] >= before - (4 << 20)
    driver.release_context(0)


def test_peers_deliver_what_the_driver_says() -> None:
    for source in range(gpu_count()):
        for target in range(gpu_count()):
            if source != target:
                facts = peer_facts(open_driver(), source, target)
                assert facts.says == (facts.copies and facts.reads and facts.writes)


def test_doctor_finds_the_machine() -> None:
    facts = doctor_facts()
    print(facts)
    assert len(facts.gpus) == gpu_count()
    assert facts.rates


@pytest.mark.parametrize("emit", list(Emit))
def test_times_of_ops_and_replays_are_taken(devices: list[int], emit: Emit) -> None:
    with make(devices, emit=emit) as graph:
        graph.bind(x=X)
        times = graph.time_ops(rounds=5)
        assert len(times) == 15
        assert all(each.us > 0 for each in times)
        assert all(each > 0 for each in graph.time_replays(rounds=5))
        assert same(graph, expected(X))
