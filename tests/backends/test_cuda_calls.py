"""The CUDA backend over a driver without a GPU: its calls, its graphs, its errors, no leaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver
from small_plan import KERNELS, expected, small_plan

from graphc.backends.cuda import CudaGraph
from graphc.backends.cuda.readback import read_back
from graphc.gpu.protocol import CopyCall, FillCall
from graphc.ir import POISON, Emit, Extern, Opaque, Wait
from graphc.plan import Plan
from graphc.text.diagnostics import CompilerBug, CudaError, SpecError, UsageError

EMITS = list(Emit)
X = np.random.default_rng(1).standard_normal((10, 8), dtype=np.float32)


def ready(plan: Plan) -> Plan:
    """The plan with cubins that nobody looks into."""
    images = {key: replace(each, cubins={"sm_90a": "eA=="}) for key, each in plan.images.items()}
    return replace(plan, images=images)


def fake(**options: Any) -> RecordingDriver:
    return RecordingDriver(kernels=KERNELS, **options)


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    made = fake()
    yield made
    assert not made.leaks()


def make(driver: RecordingDriver, plan: Plan | None = None, **options: Any) -> CudaGraph:
    return CudaGraph(ready(plan or small_plan()), driver=driver, **options)


@pytest.mark.parametrize("emit", EMITS)
@pytest.mark.parametrize("pieces", [1, 3, 8, 16])
def test_every_emission_gives_the_same_bytes(driver: Any, emit: Emit, pieces: int) -> None:
    with make(driver, small_plan(emit=emit, pieces=pieces)) as graph:
        graph.bind(x=X)
        graph.launch()
        assert np.array_equal(graph["out"].numpy(), expected(X))


@pytest.mark.parametrize("emit", EMITS)
@pytest.mark.parametrize("pieces", [1, 3, 16])
def test_the_count_changes_from_launch_to_launch(driver: Any, emit: Emit, pieces: int) -> None:
    with make(driver, small_plan(emit=emit, pieces=pieces)) as graph:
        graph.bind(x=X)
        for count in (10, 3, 0, 7, 1, 10, None):
            graph["out"].write(np.zeros_like(X))
            graph.poison()
            graph.launch(count=count)
            used = 10 if count is None else count
            assert np.array_equal(graph["out"].numpy()[:used], expected(X)[:used])
            assert not graph["out"].numpy()[used:].any()


def test_what_nobody_wrote_of_an_output_is_poison_as_on_the_reference(driver: Any) -> None:
    """So digests of one run are those of the next, and of the other backend."""
    with make(driver) as graph:
        graph.bind(x=X)
        graph.launch(count=4)
        found = np.asarray(graph["out"])
        assert np.array_equal(found[:4], expected(X)[:4])
        assert (found[4:].view(np.uint8) == POISON).all()


def test_an_unchanged_launch_is_one_driver_call(driver: Any) -> None:
    with make(driver) as graph:
        graph.launch(count=4)
        before = len(driver.calls)
        graph.launch(count=4)
        assert [each[0] for each in driver.calls[before:]] == ["launch_graph"]


def test_a_fill_whose_width_cannot_change_makes_a_new_graph() -> None:
    driver = fake(refuses_fill_width=True)
    with make(driver) as graph:
        graph.bind(x=X)
        for count in (10, 2, 0, 5):
            graph["out"].write(np.zeros_like(X))
            graph.launch(count=count)
            assert np.array_equal(graph["out"].numpy()[:count], expected(X)[:count])
            assert not graph["out"].numpy()[count:].any()
    assert driver.counts["instantiate"] > 1
    assert not driver.leaks()


@pytest.mark.parametrize("emit", [Emit.CAPTURE, Emit.NODES])
def test_what_was_built_is_read_back(driver: Any, emit: Emit) -> None:
    with make(driver, small_plan(emit=emit, pieces=4)) as graph:
        found = graph.read_back()
        assert found.nodes == 20
        assert found.orders > 20


def test_a_graph_without_a_wait_is_told_apart_from_its_plan(driver: Any) -> None:
    with make(driver) as graph:
        graph.upload()
        schedule, built = graph.variant.schedule, graph._executable.built
        needless = next(
            each for each in schedule.instructions if isinstance(each, Wait) and "/" in each.event
        )
        kept = tuple(each for each in schedule.instructions if each is not needless)
        with pytest.raises(CompilerBug, match="in the graph, but not in the plan"):
            read_back(driver, replace(schedule, instructions=kept), built)


def test_an_op_that_lost_one_of_its_nodes_is_told_apart(driver: Any) -> None:
    with make(driver) as graph:
        graph.upload()
        schedule, built = graph.variant.schedule, graph._executable.built
        name = next(name for name, own in built.nodes.items() if own)
        calls = {**built.calls, name: (*built.calls[name], *built.calls[name])}
        with pytest.raises(CompilerBug, match=f"'{name}' was planned as 2 nodes and has 1"):
            read_back(driver, schedule, replace(built, calls=calls))


def test_a_node_with_another_pointer_is_told_apart(driver: Any) -> None:
    with make(driver) as graph:
        graph.upload()
        built = graph._executable.built
        node = built.nodes["clear/piece.0"][0]
        call = driver.node(node).call
        assert isinstance(call, FillCall)
        driver.node(node).call = replace(call, target=call.target + 16)
        with pytest.raises(CompilerBug, match=r"op 'clear/piece.0' was planned as"):
            graph.read_back()
        driver.node(node).call = call


def test_a_captured_stream_outside_the_capture_is_a_bug(driver: Any) -> None:
    plan = small_plan()
    schedule = plan.variants[0].schedule
    kept = tuple(
        each for each in schedule.instructions
        if not (isinstance(each, Wait) and each.event == "fork")
    )  # fmt: skip
    broken = replace(plan.variants[0], schedule=replace(schedule, instructions=kept))
    with make(driver, replace(plan, variants=(broken,))) as graph:
        with pytest.raises(CompilerBug, match="outside the capture"):
            graph.launch()
        assert not driver.captures


def attempt(action: Callable[[], object]) -> CudaError | None:
    try:
        action()
    except CudaError as problem:
        return problem
    return None


@pytest.mark.parametrize("emit", EMITS)
@pytest.mark.parametrize(
    "call", ["launch", "copy", "fill", "add_kernel", "add_copy", "begin_capture"]
)
def test_a_failing_call_names_its_op_and_leaves_all_usable(emit: Emit, call: str) -> None:
    driver = fake()
    graph = make(driver, small_plan(emit=emit))
    graph.bind(x=X)
    # Not the first of its name: count words are fills, too, and the middle of a capture is worse.
    driver.failing[call] = driver.counts[call] + 2
    before = driver.counts[call]
    refusal = attempt(graph.launch)
    if refusal is None:
        assert driver.counts[call] < before + 2  # this emission does not use the call
    else:
        assert refusal.exit_code == 3
        assert refusal.op is not None or "capture" in call or refusal.call == "fill"
    assert not driver.captures
    driver.failing.clear()
    graph.launch()
    assert np.array_equal(graph["out"].numpy(), expected(X))
    graph.close()
    assert not driver.leaks()


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("call", ["allocate", "allocate_host", "create_stream", "load_library"])
def test_a_failure_while_opening_gives_everything_back(call: str, nth: int) -> None:
    driver = fake(failing={call: nth})

    def use() -> None:
        with make(driver) as graph:
            graph.launch()

    refusal = attempt(use)
    assert refusal is None or "told to fail" in str(refusal)
    assert not driver.leaks()


def test_no_memory_names_the_allocation_and_what_is_free() -> None:
    driver = fake(nbytes=900)
    graph = make(driver)
    with pytest.raises(CudaError, match=r"320 bytes for '.*' do not fit on GPU .* bytes are free"):
        graph.launch()
    graph.close()
    assert not driver.leaks()


def test_a_gpu_too_old_for_a_kernel_is_named_with_both_numbers(driver: Any) -> None:
    with pytest.raises(CudaError, match=r"'affine' needs compute capability 10.0; .* has 9.0"):
        make(driver, small_plan(min_capability=100))


def test_no_gpu_at_all_is_said() -> None:
    with pytest.raises(CudaError, match="NO_GPU"):
        make(fake(gpus=0))


# Variants, peers, placement.


def test_the_first_variant_that_fits_is_taken(driver: Any) -> None:
    with make(driver, small_plan(p2p=True)) as graph:
        assert graph.routes == {"back": "p2p"}
        assert driver.peer_contexts == {(1, 2), (2, 1)}
        graph.bind(x=X)
        graph.launch()
        assert np.array_equal(graph["out"].numpy(), expected(X))


@pytest.mark.parametrize("peers", ["refused", "lie"])
def test_peers_that_do_not_deliver_are_not_used(peers: Any) -> None:
    driver = fake(peers=peers)
    with make(driver, small_plan(p2p=True)) as graph:
        assert graph.routes == {"back": "host"}
    assert not driver.leaks()


def test_a_lying_machine_without_another_route_is_named() -> None:
    plan = small_plan(p2p=True)
    driver = fake(peers="lie")
    with pytest.raises(CudaError, match=r"peer_copy from peer to primary: .*wrong bytes") as caught:
        make(driver, replace(plan, variants=plan.variants[:1]))
    assert caught.value.exit_code == 3
    assert not driver.leaks()


def test_peers_can_be_refused_by_the_environment(monkeypatch: Any, driver: Any) -> None:
    monkeypatch.setenv("GRAPHC_NO_P2P", "1")
    with make(driver, small_plan(p2p=True)) as graph:
        assert graph.routes == {"back": "host"}


def test_peers_are_tested_once_a_process(driver: Any) -> None:
    make(driver, small_plan(p2p=True)).close()
    loads = driver.counts["load_library"]
    make(driver, small_plan(p2p=True)).close()
    assert driver.counts["load_library"] == loads + 2  # the two kernels, no probe


def test_two_devices_share_one_gpu() -> None:
    driver = fake(gpus=1, peers="refused")
    with make(driver, small_plan(p2p=True)) as graph:
        assert graph.placed == {"primary": 0, "peer": 0}
        assert graph.routes == {"back": "p2p"}
        graph.bind(x=X)
        graph.launch(count=6)
        assert np.array_equal(graph["out"].numpy()[:6], expected(X)[:6])
    assert not driver.leaks()


def test_devices_are_placed_as_asked(driver: Any) -> None:
    with make(driver, devices={"primary": 1, "peer": 0}) as graph:
        assert graph.placed == {"primary": 1, "peer": 0}
    with make(driver, devices=[1, 1]) as graph:
        assert graph.placed == {"primary": 1, "peer": 1}


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([0], "2 devices .* but 1 GPUs"),
        ([0, 5], "'peer' is placed on GPU 5, but this machine has 2"),
        ({"primary": 0, "pear": 1}, "did you mean 'peer'"),
        ({"primary": 0}, "no GPU was given for device 'peer'"),
    ],
)
def test_wrong_placements_are_usage_errors(driver: Any, devices: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(driver, devices=devices)


# Binding and views.


class OnDevice:
    """An array of another library, in the fake's memory."""

    def __init__(self, pointer: int, shape: tuple[int, ...] = (10, 8), **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (pointer, False), "strides": None,
            "version": 3, **changes,
        }  # fmt: skip


@pytest.fixture
def place(driver: Any) -> Iterator[Any]:
    taken: list[int] = []

    def on_gpu(ordinal: int, nbytes: int = 4096) -> int:
        taken.append(driver.take(ordinal, nbytes))
        return taken[-1]

    yield on_gpu
    for pointer in taken:
        del driver.memory[pointer]


def test_arrays_on_the_device_are_used_in_place(driver: Any, place: Any) -> None:
    first, second = place(0), place(0)
    driver.write(first, X.ctypes.data, X.nbytes)
    driver.write(second, (-X).ctypes.data, X.nbytes)
    with make(driver) as graph:
        graph.bind(x=OnDevice(first))
        graph.launch()
        assert np.array_equal(graph["out"].numpy(), expected(X))
        graph.bind(x=OnDevice(second))
        graph.launch()
        assert np.array_equal(graph["out"].numpy(), expected(-X))
        assert driver.counts["instantiate"] == 1
        assert driver.counts["update_exec"] == 1
        assert graph["x"].pointer == second


def test_an_optional_buffer_is_null_until_bound(driver: Any) -> None:
    with make(driver) as graph:
        graph.bind(x=X)
        with pytest.raises(UsageError, match="'bias' is optional"):
            graph["bias"]
        graph.launch()
        graph.bind({"bias": X})
        graph.launch()
        assert np.array_equal(graph["out"].numpy(), expected(X, X))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"typestr": "<f2"}, "'x': expected dtype f32, found f16"),
        ({"shape": (9, 8)}, r"'x': expected shape \(10, 8\), found \(9, 8\)"),
        ({"strides": (4, 40)}, "'x': expected rows next to each other"),
    ],
)
def test_arrays_that_do_not_fit_are_told_why(
    driver: Any, place: Any, changes: Any, message: str
) -> None:
    with make(driver) as graph, pytest.raises(UsageError, match=message) as caught:
        graph.bind(x=OnDevice(place(0), **changes))
    assert caught.value.exit_code == 2


def test_arrays_elsewhere_are_refused(driver: Any, place: Any) -> None:
    with make(driver) as graph:
        with pytest.raises(UsageError, match=r"expected memory of GPU 0 .* found memory of GPU 1"):
            graph.bind(x=OnDevice(place(1)))
        with pytest.raises(UsageError, match="an address that 16 divides"):
            graph.bind(x=OnDevice(place(0) + 4))
        with pytest.raises(UsageError, match="found memory of the host"):
            graph.bind(x=OnDevice(X.ctypes.data // 16 * 16))
        with pytest.raises(UsageError, match="found list; expected a numpy array"):
            graph.bind(x=[1.0])
        with pytest.raises(UsageError, match="expected dtype f32"):
            graph.bind(x=X.astype(np.float64))
        with pytest.raises(UsageError, match="did you mean 'out'"):
            graph.bind(oot=X)
        with pytest.raises(UsageError, match="is scratch"):
            graph.bind(acc=X)


@pytest.mark.parametrize("count", [-1, 11])
def test_a_count_beyond_the_capacity_is_refused(driver: Any, count: int) -> None:
    with (
        make(driver) as graph,
        pytest.raises(UsageError, match=f"count {count} is outside 0 to 10"),
    ):
        graph.launch(count=count)


def test_views_speak_dlpack_and_the_cuda_interface(driver: Any) -> None:
    with make(driver) as graph:
        graph.bind(x=X)
        view = graph["x"]
        assert view.__cuda_array_interface__["shape"] == (10, 8)
        assert view.__dlpack_device__() == (2, 0)
        again = make(driver)
        again.bind(out=view)  # our own DLPack, read back by ourselves
        assert again["out"].pointer == view.pointer
        again.close()
        mapped = graph["down"]
        assert mapped.__dlpack_device__() == (3, 0)
        seen = np.from_dlpack(mapped)
        mapped.write(X)
        assert np.array_equal(seen, X)


def test_a_closed_graph_says_so(driver: Any) -> None:
    graph = make(driver)
    graph.launch()
    graph.close()
    graph.close()
    for use in (graph.launch, graph.synchronize, lambda: graph["x"], lambda: graph.bind(x=X)):
        with pytest.raises(UsageError, match="closed"):
            use()


class TorchLike:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


def test_any_stream_will_do(driver: Any) -> None:
    driver.push_context(1)
    handle = driver.create_stream(0)
    driver.pop_context()
    with make(driver) as graph:
        for stream in (TorchLike(handle), handle, None):
            graph.launch(stream)
        launches = [each[2] for each in driver.calls if each[0] == "launch_graph"]
        assert launches[:2] == [handle, handle]
        with pytest.raises(UsageError, match="no stream"):
            graph.launch("stream")
    driver.destroy_stream(handle)


# Other works.


def enqueue(stream: int, *, source: Any, target: Any) -> None:
    CURRENT[0].copy(CopyCall(target.pointer, source.pointer, source.nbytes), stream)


CURRENT: list[RecordingDriver] = []


@pytest.mark.parametrize("emit", EMITS)
def test_an_extern_op_enqueues_on_the_stream_that_it_is_given(emit: Emit) -> None:
    driver = fake()
    CURRENT[:] = [driver]
    plan = small_plan(emit=emit, pieces=1)
    program = plan.variants[0].schedule.program
    ops = tuple(
        replace(op, work=Extern(f"{__name__}:enqueue", "x:y")) if op.name == "back" else op
        for op in program.ops
    )
    schedule = replace(plan.variants[0].schedule, program=replace(program, ops=ops))
    with make(
        driver, replace(plan, variants=(replace(plan.variants[0], schedule=schedule),))
    ) as graph:
        graph.bind(x=X)
        graph.launch()
        if emit is not Emit.NODES:  # the fake does not look into child graphs
            assert np.array_equal(graph["out"].numpy(), expected(X))
        if emit is not Emit.STREAMS:
            assert graph.read_back().nodes == 5
    assert not driver.leaks()


def test_an_op_with_nothing_to_run_is_the_authors(driver: Any) -> None:
    plan = small_plan(pieces=1)
    program = plan.variants[0].schedule.program
    ops = tuple(replace(op, work=Opaque()) if op.name == "back" else op for op in program.ops)
    schedule = replace(plan.variants[0].schedule, program=replace(program, ops=ops))
    with (
        make(
            driver, replace(plan, variants=(replace(plan.variants[0], schedule=schedule),))
        ) as graph,
        pytest.raises(SpecError, match="can be checked, not run"),
    ):
        graph.launch()


def test_no_tokens_at_all_work(driver: Any) -> None:
    for emit in EMITS:
        with make(driver, small_plan(tokens=0, emit=emit)) as graph:
            graph.launch()
            assert graph["out"].numpy().shape == (0, 8)


def test_times_of_ops_name_all_of_them(driver: Any) -> None:
    with make(driver) as graph:
        times = graph.time_ops(rounds=2)
        assert len(times) == 15
        assert {each.stream for each in times} == {"primary.0", "primary.down", "peer.0"}
        assert len(graph.time_replays(rounds=3)) == 3
