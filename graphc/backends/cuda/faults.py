"""Faults of kernels while they run: errors that end all work of the process on a GPU.

The driver reports them at whatever call comes next, so the call says nothing about the cause.
"""

from __future__ import annotations

from graphc.plan import Plan
from graphc.text.diagnostics import CudaError

# What a kernel did, by the driver's name for it.
FAULTS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel touched memory that does not exist",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel used an address that its access does not divide",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "a kernel used an address of another kind of memory",
    "CUDA_ERROR_INVALID_PC": "a kernel jumped to where no code is",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "a kernel came to an instruction that the GPU does not have",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "a kernel's stack overflowed or was overwritten",
    "CUDA_ERROR_ASSERT": "an assertion in a kernel does not hold",
    "CUDA_ERROR_LAUNCH_FAILED": "a kernel failed while it ran",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "a kernel ran longer than the system allows",
}


def explained(problem: CudaError, plan: Plan) -> CudaError:
    """The error itself; of a fault that some kernel made earlier, one that says what to do."""
    if problem.error not in FAULTS or problem.hint is not None:
        return problem
    externs = {
        op.work.function for op in plan.variants[0].schedule.program if op.work.kind == "extern"
    }
    suspects = sorted({image.template for image in plan.images.values()} | externs)
    return CudaError(
        problem.call,
        problem.error,
        f"{FAULTS[problem.error]}; the driver reports it here, after the launch "
        f"({problem.explanation})",
        op=problem.op,
        span=problem.span,
        hint=(
            f"it is one of the kernels of plan '{plan.name}' ({', '.join(suspects) or 'none'}), or "
            "other work of this process; this process can use the GPU no more, start a new one, "
            "and run it under compute-sanitizer to find the kernel and line"
        ),
    )
