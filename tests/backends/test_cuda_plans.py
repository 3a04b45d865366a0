"""The peer layer through the CUDA backend without a GPU: kernels are their numpy references.

Graphs run their nodes in random orders that their edges allow, so what is compared is what was
really built: pointers, arguments, copy ranges, and order.
"""

from __future__ import annotations

import ctypes
import inspect
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import RecordingDriver

import graphc
from graphc.backends.cuda import CudaGraph
from graphc.backends.reference import ReferenceGraph, resolve
from graphc.dtypes import dtype
from graphc.inputs import random_inputs
from graphc.ir import Emit, Kernel, Op, Program
from graphc.kernels.beside import home
from graphc.plan import KernelImage, Plan

ROUTES = ["host", "host_copy", "host_push", "p2p", "p2p_read", "p2p_write"]
POISON = np.float32(np.nan)


def compiled(emit: Emit = Emit.CAPTURE, **values: Any) -> Plan:
    """A plan whose cubins are the names of their kernels."""
    plan = graphc.compile(
        "specs/moe_peer.yaml",
        preset="small",
        cubins=False,
        arch="sm_90a",
        emit=emit.value,
        **values,
    )
    return named_cubins(plan)


def named_cubins(plan: Plan) -> Plan:
    """The plan with cubins that are the names of their kernels."""
    images = {
        key: replace(image, cubins={"sm_90a": b64encode(key.encode()).decode()})
        for key, image in plan.images.items()
    }
    return replace(plan, images=images)


class References:
    """Every kernel image of a plan as a function of its arguments, which tell the op, too."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.graph: CudaGraph | None = None  # once it is made
        self.known: dict[tuple[Any, ...], tuple[Op, Program]] = {}

    def kernels(self) -> dict[str, Callable[..., None]]:
        # Those by which units wait for each other have no reference: the fake driver knows them.
        return {key: self.kernel(key) for key, image in self.plan.images.items() if image.reference}

    def kernel(self, key: str) -> Callable[..., None]:
        def run(*values: Any) -> None:
            run_reference(self.plan.images[key], *self.op_of((key, *values)), values)

        return run

    def op_of(self, values: tuple[Any, ...]) -> tuple[Op, Program]:
        assert self.graph is not None
        if values not in self.known:  # at first, and after a binding
            works = [each.work for each in self.graph._session.emitters.values()]
            images = self.graph.variant.images
            self.known = {
                (images[op.step], *(value for _, value in work.launches[op.name].arguments)): (
                    op, work.program
                )
                for work in works
                for op in work.program
                if op.name in work.launches
            }  # fmt: skip
        return self.known[values]


def run_reference(image: KernelImage, op: Op, program: Program, values: tuple[Any, ...]) -> None:
    assert isinstance(op.work, Kernel)
    assert image.reference
    function, work = resolve(image.reference, home(image)), op.work
    shapes = {each.argument: program.buffers[each.region.buffer] for each in op.accesses}

    def array(name: str, address: int | tuple[int, ...]) -> Any:
        if isinstance(address, tuple):
            return tuple(array(name, each) for each in address)
        if not address:
            return None
        buffer = shapes[name]
        raw = (ctypes.c_uint8 * buffer.nbytes).from_address(address)
        return np.frombuffer(raw, dtype(buffer.dtype).numpy).reshape(buffer.shape)

    if image.is_guarded:
        *values, guard = values
        if guard and ctypes.c_uint32.from_address(guard).value:
            return
    *given, word, scale, lo, hi, den, piece = values
    pointers, scalars = given[: len(image.pointers)], given[len(image.pointers) :]
    count = ctypes.c_int32.from_address(word).value if word else None
    unit, rows = (1, scale) if count is None else (scale, count)
    known = {
        **work.symbols,
        **work.options,
        **{name: array(name, at) for name, at in zip(image.pointers, pointers, strict=True)},
        **{name: value for (name, _), value in zip(image.scalars, scalars, strict=True)},
        "lo": unit * (rows * lo // den),
        "hi": unit * (rows * hi // den),
        "piece": piece,
        "count": count,
    }
    function(**{name: known[name] for name in inspect.signature(function).parameters})


def outputs(graph: Any, plan: Plan, counts: tuple[int, ...]) -> list[Any]:
    inputs = random_inputs(plan)
    graph.bind({name: array.copy() for name, array in inputs.items()})
    found = []
    for count in counts:
        rows = inputs["residual"].copy()
        rows[count:] = POISON
        graph.bind(residual=rows)
        graph.poison()
        graph.launch(count=count)
        found.append(np.array(np.asarray(graph["residual"]))[:count])
    return found


def check_against_reference(plan: Plan, seed: int) -> None:
    counts = (37, 5, 0, 20)
    meanings = References(plan)
    driver = RecordingDriver(kernels=meanings.kernels(), seed=seed)
    with CudaGraph(plan, driver=driver) as graph:
        meanings.graph = graph
        found = outputs(graph, plan, counts)
        if plan.variants[0].schedule.emit is not Emit.STREAMS:
            graph.read_back()
    reference = ReferenceGraph(plan)
    for ours, wanted in zip(found, outputs(reference, plan, counts), strict=True):
        assert np.array_equal(ours, wanted)
    assert not driver.leaks()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("emit", [Emit.CAPTURE, Emit.NODES])
def test_graphs_of_every_route_run_in_any_order_of_their_edges(emit: Emit, route: str) -> None:
    check_against_reference(compiled(emit, route=route, pieces=3), seed=ROUTES.index(route))


@pytest.mark.parametrize("pieces", [1, 8, 64])
@pytest.mark.parametrize("emit", list(Emit))
def test_graphs_of_any_number_of_pieces_do(emit: Emit, pieces: int) -> None:
    check_against_reference(compiled(emit, route="host", pieces=pieces), seed=pieces)
