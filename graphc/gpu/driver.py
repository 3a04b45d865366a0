"""The driver protocol over ``cuda.bindings.driver``: the only file that imports it.

Works on bindings 12.8 and later and on 13. Between them only the edge data differ: 13 adds a list
to the results of ``cuGraphGetEdges`` and ``cuStreamGetCaptureInfo``; what is read here stands
before it, or last, in both.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from cuda.bindings import driver as cu

from graphc.gpu.protocol import (
    Argument,
    CopyCall,
    DeviceFacts,
    FillCall,
    KernelCall,
    LaunchStep,
    MemoryOp,
    MemoryOpsCall,
    NodeKind,
    PointerFacts,
    RecordStep,
    Step,
    WaitStep,
)
from graphc.text.diagnostics import CudaError

OLDEST_DRIVER = 12040  # cuFuncLoad, cuLibrary* on every card
SUCCESS = cu.CUresult.CUDA_SUCCESS
NOT_READY = cu.CUresult.CUDA_ERROR_NOT_READY
PEER_ENABLED = cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
PORTABLE_MAPPED = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
NON_BLOCKING = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
ATTRIBUTE = cu.CUdevice_attribute
NODE_KINDS = {
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL: NodeKind.KERNEL,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY: NodeKind.COPY,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET: NodeKind.FILL,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: NodeKind.MEMORY_OPS,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY: NodeKind.EMPTY,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH: NodeKind.CHILD,
}


class CudaDriver:
    """The real driver; made once a process by ``graphc.gpu.open_driver``."""

    def __init__(self) -> None:
        # cuInit first: without a driver other calls may hang or crash, this one fails cleanly.
        try:
            result = cu.cuInit(0)
        except RuntimeError as problem:
            raise CudaError(
                "cuInit",
                "NO_DRIVER",
                f"{problem} Without a GPU, use the reference backend",
            ) from None
        if result[0] != SUCCESS:
            found = failure("cuInit", result[0])
            advice = (
                "without a GPU, use the reference backend; 'graphc doctor' says what is missing"
            )
            raise CudaError(found.call, found.error, found.explanation, hint=advice)
        if self.version() < OLDEST_DRIVER:
            raise CudaError(
                "cuDriverGetVersion",
                "DRIVER_TOO_OLD",
                f"the driver supports CUDA {dotted(self.version())}; graphc needs "
                f"{dotted(OLDEST_DRIVER)} or later: update the NVIDIA driver",
            )

        self.copy_record = copy_params(CopyCall(0, 0, 0))

    # The machine.

    def version(self) -> int:
        return int(check("cuDriverGetVersion", cu.cuDriverGetVersion()))

    def device_count(self) -> int:
        return int(check("cuDeviceGetCount", cu.cuDeviceGetCount()))

    def device(self, ordinal: int) -> DeviceFacts:
        device = check("cuDeviceGet", cu.cuDeviceGet(ordinal))
        name = check("cuDeviceGetName", cu.cuDeviceGetName(256, device))
        pci = check("cuDeviceGetPCIBusId", cu.cuDeviceGetPCIBusId(32, device))
        major = attribute(ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        minor = attribute(ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
        return DeviceFacts(
            ordinal=ordinal,
            name=text(name),
            capability=10 * major + minor,
            sms=attribute(ATTRIBUTE.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
            shared_optin=attribute(
                ATTRIBUTE.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device
            ),
            nbytes=int(check("cuDeviceTotalMem", cu.cuDeviceTotalMem(device))),
            pci=text(pci),
        )

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        return bool(check("cuDeviceCanAccessPeer", cu.cuDeviceCanAccessPeer(ordinal, peer)))

    # Contexts.

    def retain_context(self, ordinal: int) -> int:
        return int(check("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(ordinal)))

    def release_context(self, ordinal: int) -> None:
        check("cuDevicePrimaryCtxRelease", cu.cuDevicePrimaryCtxRelease(ordinal))

    def current_context(self) -> int:
        return int(check("cuCtxGetCurrent", cu.cuCtxGetCurrent()))

    def push_context(self, context: int) -> None:
        check("cuCtxPushCurrent", cu.cuCtxPushCurrent(context))

    def pop_context(self) -> None:
        check("cuCtxPopCurrent", cu.cuCtxPopCurrent())

    def enable_peer(self, peer_context: int) -> None:
        result = cu.cuCtxEnablePeerAccess(peer_context, 0)
        if result[0] != PEER_ENABLED:
            check("cuCtxEnablePeerAccess", result)

    def synchronize_context(self) -> None:
        check("cuCtxSynchronize", cu.cuCtxSynchronize())

    # Memory.

    def free_memory(self) -> tuple[int, int]:
        free, total = check("cuMemGetInfo", cu.cuMemGetInfo())
        return int(free), int(total)

    def allocate(self, nbytes: int) -> int:
        return int(check("cuMemAlloc", cu.cuMemAlloc(nbytes)))

    def free(self, pointer: int) -> None:
        check("cuMemFree", cu.cuMemFree(pointer))

    def allocate_host(self, nbytes: int) -> int:
        # Unified addressing: every device sees the memory at the host's own address.
        return int(check("cuMemHostAlloc", cu.cuMemHostAlloc(nbytes, PORTABLE_MAPPED)))

    def free_host(self, pointer: int) -> None:
        check("cuMemFreeHost", cu.cuMemFreeHost(pointer))

    def pointer(self, address: int) -> PointerFacts | None:
        kinds = cu.CUpointer_attribute
        result = cu.cuPointerGetAttribute(
            kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, cu.CUdeviceptr(address)
        )
        if result[0] != SUCCESS or not int(result[1]):
            return None
        if int(result[1]) != int(cu.CUmemorytype.CU_MEMORYTYPE_HOST):
            return PointerFacts(False, self.ordinal_of(address), address)
        seen = cu.cuPointerGetAttribute(
            kinds.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, cu.CUdeviceptr(address)
        )
        return PointerFacts(True, 0, int(check("cuPointerGetAttribute", seen)))

    def ordinal_of(self, address: int) -> int:
        """The GPU of device memory: by the context of its allocation (pools have none)."""
        kinds = cu.CUpointer_attribute
        owner = cu.cuPointerGetAttribute(
            kinds.CU_POINTER_ATTRIBUTE_CONTEXT, cu.CUdeviceptr(address)
        )
        if owner[0] == SUCCESS and int(owner[1]):
            self.push_context(int(owner[1]))
            try:
                return int(check("cuCtxGetDevice", cu.cuCtxGetDevice()))
            finally:
                self.pop_context()
        ordinal = cu.cuPointerGetAttribute(
            kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, cu.CUdeviceptr(address)
        )
        return int(check("cuPointerGetAttribute", ordinal))

    def read(self, host: int, pointer: int, nbytes: int) -> None:
        check("cuMemcpyDtoH", cu.cuMemcpyDtoH(host, pointer, nbytes))

    def write(self, pointer: int, host: int, nbytes: int) -> None:
        check("cuMemcpyHtoD", cu.cuMemcpyHtoD(pointer, host, nbytes))
        # From pageable memory the call returns once the bytes are staged, before they have arrived,
        # and our streams do not wait for the default one.
        check("cuStreamSynchronize", cu.cuStreamSynchronize(cu.CU_STREAM_LEGACY))

    # Kernels.

    def load_library(self, code: bytes) -> int:
        result = cu.cuLibraryLoadData(code, [], [], 0, [], [], 0)
        return int(check("cuLibraryLoadData", result))

    def unload_library(self, library: int) -> None:
        check("cuLibraryUnload", cu.cuLibraryUnload(library))

    def kernel(self, library: int, entry: str) -> int:
        result = cu.cuLibraryGetKernel(library, entry.encode())
        return int(check("cuLibraryGetKernel", result))

    def allow_shared(self, kernel: int, ordinal: int, nbytes: int) -> None:
        name = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check("cuKernelSetAttribute", cu.cuKernelSetAttribute(name, nbytes, kernel, ordinal))

    def prefer_shared(self, kernel: int, ordinal: int) -> None:
        """Run the kernel on multiprocessors with as much shared memory, and as little cache, as
        they can have."""
        name = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        check("cuKernelSetAttribute", cu.cuKernelSetAttribute(name, 100, kernel, ordinal))

    def function(self, kernel: int) -> int:
        function = check("cuKernelGetFunction", cu.cuKernelGetFunction(kernel))
        check("cuFuncLoad", cu.cuFuncLoad(function))
        return int(function)

    def blocks_at_once(self, function: int, threads: int, shared: int) -> int:
        """How many blocks of the function one multiprocessor of the current context can hold."""
        found = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)
        return int(check("cuOccupancyMaxActiveBlocksPerMultiprocessor", found))

    # Work on streams.

    def create_stream(self, priority: int) -> int:
        result = cu.cuStreamCreateWithPriority(NON_BLOCKING, priority)
        return int(check("cuStreamCreateWithPriority", result))

    def destroy_stream(self, stream: int) -> None:
        check("cuStreamDestroy", cu.cuStreamDestroy(stream))

    def stream_context(self, stream: int) -> int:
        result = cu.cuStreamGetCtx(stream)
        check("cuStreamGetCtx", result)
        return int(result[1])

    def synchronize(self, stream: int) -> None:
        check("cuStreamSynchronize", cu.cuStreamSynchronize(stream))

    def is_idle(self, stream: int) -> bool:
        result = cu.cuStreamQuery(stream)
        if result[0] == NOT_READY:
            return False
        check("cuStreamQuery", result)
        return True

    def launch(self, call: KernelCall, stream: int) -> None:
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = call.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = call.block
        config.sharedMemBytes = call.shared
        config.hStream = cu.CUstream(stream)
        attributes = launch_attributes(call)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        packed = Packed(call.arguments)
        result = cu.cuLaunchKernelEx(config, cu.CUfunction(call.function), packed.address, 0)
        check("cuLaunchKernelEx", result)

    def copy(self, call: CopyCall, stream: int) -> None:
        result = cu.cuMemcpyAsync(call.target, call.source, call.nbytes, stream)
        check("cuMemcpyAsync", result)

    def fill(self, call: FillCall, stream: int) -> None:
        if call.height == 1:
            flat = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}
            result = flat[call.element_nbytes](call.target, call.value, call.width, stream)
            check(f"cuMemsetD{8 * call.element_nbytes}Async", result)
            return
        pitched = {1: cu.cuMemsetD2D8Async, 2: cu.cuMemsetD2D16Async, 4: cu.cuMemsetD2D32Async}
        result = pitched[call.element_nbytes](
            call.target, call.pitch, call.value, call.width, call.height, stream
        )
        check(f"cuMemsetD2D{8 * call.element_nbytes}Async", result)

    def memory_ops(self, call: MemoryOpsCall, stream: int) -> None:
        operations = memory_operations(call)
        result = cu.cuStreamBatchMemOp(stream, len(operations), operations, 0)
        check("cuStreamBatchMemOp", result)

    def create_event(self, *, is_timed: bool = False) -> int:
        flags = cu.CUevent_flags
        kind = flags.CU_EVENT_DEFAULT if is_timed else flags.CU_EVENT_DISABLE_TIMING
        return int(check("cuEventCreate", cu.cuEventCreate(int(kind))))

    def destroy_event(self, event: int) -> None:
        check("cuEventDestroy", cu.cuEventDestroy(event))

    def record(self, event: int, stream: int) -> None:
        check("cuEventRecord", cu.cuEventRecord(event, stream))

    def record_in_graph(self, event: int, stream: int) -> None:
        flag = cu.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        result = cu.cuEventRecordWithFlags(event, stream, int(flag))
        check("cuEventRecordWithFlags", result)

    def wait(self, stream: int, event: int) -> None:
        check("cuStreamWaitEvent", cu.cuStreamWaitEvent(stream, event, 0))

    def elapsed_us(self, start: int, stop: int) -> float:
        return 1000.0 * float(check("cuEventElapsedTime", cu.cuEventElapsedTime(start, stop)))

    # Graphs.

    def begin_capture(self, stream: int) -> None:
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check("cuStreamBeginCapture", cu.cuStreamBeginCapture(stream, mode))

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream records what it gets, also in a capture that has failed."""
        status = check("cuStreamIsCapturing", cu.cuStreamIsCapturing(stream))
        return bool(status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def capture_tail(self, stream: int) -> tuple[int, tuple[int, ...]] | None:
        """The graph that the stream captures into and what its next node would depend on."""
        result = cu.cuStreamGetCaptureInfo(stream)
        check("cuStreamGetCaptureInfo", result)
        if result[1] != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            return None
        return int(result[3]), tuple(int(node) for node in result[4] or ())

    def end_capture(self, stream: int) -> int:
        return int(check("cuStreamEndCapture", cu.cuStreamEndCapture(stream)))

    def create_graph(self) -> int:
        return int(check("cuGraphCreate", cu.cuGraphCreate(0)))

    def destroy_graph(self, graph: int) -> None:
        check("cuGraphDestroy", cu.cuGraphDestroy(graph))

    def add_kernel(self, graph: int, before: Sequence[int], call: KernelCall, context: int) -> int:
        packed = Packed(call.arguments)
        params = cu.CUDA_KERNEL_NODE_PARAMS()
        params.func = cu.CUfunction(call.function)
        params.gridDimX, params.gridDimY, params.gridDimZ = call.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = call.block
        params.sharedMemBytes = call.shared
        params.kernelParams = packed.address
        params.ctx = cu.CUcontext(context)
        result = cu.cuGraphAddKernelNode(graph, handles(before), len(before), params)
        node = check("cuGraphAddKernelNode", result)
        for name, value in attribute_values(call, cu.CUkernelNodeAttrValue):
            result = cu.cuGraphKernelNodeSetAttribute(node, name, value)
            check("cuGraphKernelNodeSetAttribute", result)
        return int(node)

    def add_copy(self, graph: int, before: Sequence[int], call: CopyCall, context: int) -> int:
        result = cu.cuGraphAddMemcpyNode(
            graph, handles(before), len(before), copy_params(call), context
        )
        return int(check("cuGraphAddMemcpyNode", result))

    def add_fill(self, graph: int, before: Sequence[int], call: FillCall, context: int) -> int:
        result = cu.cuGraphAddMemsetNode(
            graph, handles(before), len(before), fill_params(call), context
        )
        return int(check("cuGraphAddMemsetNode", result))

    def add_memory_ops(
        self, graph: int, before: Sequence[int], call: MemoryOpsCall, context: int
    ) -> int:
        params = cu.CUDA_BATCH_MEM_OP_NODE_PARAMS()
        params.ctx, params.flags = cu.CUcontext(context), 0
        params.paramArray = memory_operations(call)
        params.count = len(call.operations)
        result = cu.cuGraphAddBatchMemOpNode(graph, handles(before), len(before), params)
        return int(check("cuGraphAddBatchMemOpNode", result))

    def add_empty(self, graph: int, before: Sequence[int]) -> int:
        result = cu.cuGraphAddEmptyNode(graph, handles(before), len(before))
        return int(check("cuGraphAddEmptyNode", result))

    def add_child(self, graph: int, before: Sequence[int], child: int) -> int:
        result = cu.cuGraphAddChildGraphNode(graph, handles(before), len(before), child)
        return int(check("cuGraphAddChildGraphNode", result))

    def nodes(self, graph: int) -> tuple[int, ...]:
        counted = cu.cuGraphGetNodes(graph)
        check("cuGraphGetNodes", counted)
        if not counted[-1]:
            return ()
        result = cu.cuGraphGetNodes(graph, counted[-1])
        check("cuGraphGetNodes", result)
        return tuple(int(node) for node in result[1])

    def edges(self, graph: int) -> tuple[tuple[int, int], ...]:
        counted = cu.cuGraphGetEdges(graph)
        check("cuGraphGetEdges", counted)
        if not counted[-1]:
            return ()
        result = cu.cuGraphGetEdges(graph, counted[-1])
        check("cuGraphGetEdges", result)
        return tuple((int(a), int(b)) for a, b in zip(result[1], result[2], strict=True))

    def node_kind(self, node: int) -> NodeKind:
        kind = check("cuGraphNodeGetType", cu.cuGraphNodeGetType(node))
        return NODE_KINDS.get(kind, NodeKind.OTHER)

    def kernel_node(self, node: int, codes: Sequence[str]) -> KernelCall:
        params = check("cuGraphKernelNodeGetParams", cu.cuGraphKernelNodeGetParams(node))
        return KernelCall(
            function=int(params.func),
            grid=(params.gridDimX, params.gridDimY, params.gridDimZ),
            block=(params.blockDimX, params.blockDimY, params.blockDimZ),
            shared=params.sharedMemBytes,
            arguments=unpack(int(params.kernelParams), codes),
        )

    def copy_node(self, node: int) -> CopyCall:
        params = check("cuGraphMemcpyNodeGetParams", cu.cuGraphMemcpyNodeGetParams(node))
        host = cu.CUmemorytype.CU_MEMORYTYPE_HOST
        source = params.srcHost if params.srcMemoryType == host else params.srcDevice
        target = params.dstHost if params.dstMemoryType == host else params.dstDevice
        nbytes = params.WidthInBytes * max(1, params.Height) * max(1, params.Depth)
        return CopyCall(int(target) + params.dstXInBytes, int(source) + params.srcXInBytes, nbytes)

    def fill_node(self, node: int) -> FillCall:
        params = check("cuGraphMemsetNodeGetParams", cu.cuGraphMemsetNodeGetParams(node))
        pitch = params.pitch if params.height > 1 else 0
        return FillCall(
            int(params.dst), params.value, params.elementSize, params.width, params.height, pitch
        )

    def memory_ops_node(self, node: int) -> MemoryOpsCall:
        params = check("cuGraphBatchMemOpNodeGetParams", cu.cuGraphBatchMemOpNodeGetParams(node))
        # The bindings lose the array that the driver tells: it is read where it lies.
        first = ctypes.c_uint64.from_address(int(params.getPtr()) + ARRAY_OFFSET).value
        records = (MemoryOpRecord * params.count).from_address(first)
        return MemoryOpsCall(tuple(memory_operation(each) for each in records))

    def instantiate(self, graph: int, *, use_priorities: bool) -> int:
        flag = cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
        result = cu.cuGraphInstantiate(graph, int(flag) if use_priorities else 0)
        return int(check("cuGraphInstantiate", result))

    def destroy_exec(self, executable: int) -> None:
        check("cuGraphExecDestroy", cu.cuGraphExecDestroy(executable))

    def update_exec(self, executable: int, graph: int) -> str | None:
        """Take over the graph's parameters; what stands in the way, or None if it is done."""
        result = cu.cuGraphExecUpdate(executable, graph)
        if result[0] == SUCCESS:
            return None
        if result[0] == cu.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:
            return str(result[1].result.name)
        raise failure("cuGraphExecUpdate", result[0])

    def set_copy(self, executable: int, node: int, call: CopyCall, context: int) -> None:
        # The driver reads the record during the call: one serves all nodes, at half the time.
        params = with_bytes(self.copy_record, call)
        result = cu.cuGraphExecMemcpyNodeSetParams(executable, node, params, context)
        check("cuGraphExecMemcpyNodeSetParams", result)

    def set_fill(self, executable: int, node: int, call: FillCall, context: int) -> None:
        result = cu.cuGraphExecMemsetNodeSetParams(executable, node, fill_params(call), context)
        check("cuGraphExecMemsetNodeSetParams", result)

    def set_enabled(self, executable: int, node: int, is_enabled: bool) -> None:
        result = cu.cuGraphNodeSetEnabled(executable, node, int(is_enabled))
        check("cuGraphNodeSetEnabled", result)

    def upload(self, executable: int, stream: int) -> None:
        check("cuGraphUpload", cu.cuGraphUpload(executable, stream))

    def launcher(self, executable: int, stream: int) -> Callable[[], None]:
        """The launch with its handles made once: what a replay loop calls."""
        launch, graph, queue = cu.cuGraphLaunch, cu.CUgraphExec(executable), cu.CUstream(stream)

        def replay() -> None:
            result = launch(graph, queue)
            if result[0] is not SUCCESS:
                check("cuGraphLaunch", result)

        return replay

    def sequence(self, steps: Sequence[Step]) -> Callable[[], None]:
        """The steps with their handles made once: what a replay loop over several graphs calls."""
        calls = tuple(prepared(each) for each in steps)

        def replay() -> None:
            for call, arguments in calls:
                result = call(*arguments)
                if result[0] is not SUCCESS:
                    check(call.__name__, result)

        return replay


def prepared(step: Step) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    match step:
        case LaunchStep(executable, stream):
            return cu.cuGraphLaunch, (cu.CUgraphExec(executable), cu.CUstream(stream))
        case RecordStep(event, stream):
            return cu.cuEventRecord, (cu.CUevent(event), cu.CUstream(stream))
        case WaitStep(stream, event):
            return cu.cuStreamWaitEvent, (cu.CUstream(stream), cu.CUevent(event), 0)


def memory_operations(call: MemoryOpsCall) -> list[Any]:
    """A write comes after a fence at system scope; that is its default."""
    kinds, waits = cu.CUstreamBatchMemOpType, cu.CUstreamWaitValue_flags
    found = []
    for each in call.operations:
        record = cu.CUstreamBatchMemOpParams()
        if each.is_wait:
            record.operation = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
            record.waitValue.operation = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
            record.waitValue.address = cu.CUdeviceptr(each.address)
            record.waitValue.value = cu.cuuint32_t(each.value)
            record.waitValue.flags = int(waits.CU_STREAM_WAIT_VALUE_EQ)
        else:
            record.operation = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
            record.writeValue.operation = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
            record.writeValue.address = cu.CUdeviceptr(each.address)
            record.writeValue.value = cu.cuuint32_t(each.value)
            record.writeValue.flags = 0
        found.append(record)
    return found


ARRAY_OFFSET = 16  # of the array in CUDA_BATCH_MEM_OP_NODE_PARAMS


class MemoryOpRecord(ctypes.Structure):
    """CUstreamBatchMemOpParams, as far as waits and writes of 32 bits use it."""

    _fields_ = (
        ("operation", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("value", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 28),
    )


def memory_operation(record: MemoryOpRecord) -> MemoryOp:
    is_wait = record.operation == int(cu.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32)
    return MemoryOp(is_wait, record.address, record.value)


class Packed:
    """Kernel arguments in memory, and the array of their addresses; keep it while the call runs."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.values = [
            ctypes.create_string_buffer(packed(code, value), struct.calcsize(code))
            for code, value in arguments
        ]
        self.pointers = (ctypes.c_void_p * max(1, len(self.values)))(
            *(ctypes.addressof(each) for each in self.values)
        )

    @property
    def address(self) -> int:
        return ctypes.addressof(self.pointers)


def packed(code: str, value: int | float | tuple[int, ...]) -> bytes:
    return struct.pack(code, *value) if isinstance(value, tuple) else struct.pack(code, value)


def unpack(address: int, codes: Sequence[str]) -> tuple[Argument, ...]:
    """The values behind an array of addresses of arguments."""
    pointers = (ctypes.c_size_t * max(1, len(codes))).from_address(address)
    found: list[Argument] = []
    for at, code in enumerate(codes):
        values = struct.unpack(code, ctypes.string_at(pointers[at], struct.calcsize(code)))
        found.append((code, values if code[0].isdigit() else values[0]))
    return tuple(found)


def launch_attributes(call: KernelCall) -> list[Any]:
    """What a launch on a stream asks for beside its shape."""
    attributes = []
    for name, value in attribute_values(call, cu.CUlaunchAttributeValue):
        attribute = cu.CUlaunchAttribute()
        attribute.id, attribute.value = name, value
        attributes.append(attribute)
    return attributes


def attribute_values(call: KernelCall, kind: Any) -> list[tuple[Any, Any]]:
    """Attributes by their ids; nodes take the same values in a record of another type."""
    ids = cu.CUlaunchAttributeID
    found = []
    if call.cluster is not None:
        value = kind()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = call.cluster
        found.append((ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value))
    if call.is_cooperative:
        value = kind()
        value.cooperative = 1
        found.append((ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value))
    if call.priority:
        value = kind()
        value.priority = call.priority
        found.append((ids.CU_LAUNCH_ATTRIBUTE_PRIORITY, value))
    return found


def copy_params(call: CopyCall) -> Any:
    """A copy in one dimension; unified addresses say by themselves where the bytes lie."""
    params = cu.CUDA_MEMCPY3D()
    params.srcMemoryType = params.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    params.srcHeight = params.dstHeight = params.Height = params.Depth = 1
    return with_bytes(params, call)


def with_bytes(params: Any, call: CopyCall) -> Any:
    params.srcDevice, params.dstDevice = call.source, call.target
    params.srcPitch = params.dstPitch = params.WidthInBytes = call.nbytes
    return params


def fill_params(call: FillCall) -> Any:
    params = cu.CUDA_MEMSET_NODE_PARAMS()
    params.dst = cu.CUdeviceptr(call.target)
    params.value, params.elementSize = call.value, call.element_nbytes
    params.width, params.height, params.pitch = call.width, call.height, call.pitch
    return params


def handles(nodes: Sequence[int]) -> list[Any]:
    return [cu.CUgraphNode(node) for node in nodes]


def attribute(name: Any, device: Any) -> int:
    return int(check("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(name, device)))


def check(call: str, result: tuple[Any, ...]) -> Any:
    """The results after the status, of a call that went well."""
    if result[0] != SUCCESS:
        raise failure(call, result[0])
    return result[1] if len(result) == 2 else result[1:]


def failure(call: str, status: Any) -> CudaError:
    found, message = cu.cuGetErrorString(status)
    explanation = text(message) if found == SUCCESS and message else "the driver gives no meaning"
    return CudaError(call, status.name, explanation)


def text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace").strip()


def dotted(version: int) -> str:
    """A CUDA version as people write it.

    >>> dotted(12040)
    '12.4'
    """
    return f"{version // 1000}.{version % 1000 // 10}"
