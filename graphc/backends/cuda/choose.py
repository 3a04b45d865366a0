"""Plan -> Variant: the first whose requirements hold on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from graphc.machine import Machine
from graphc.plan import Plan, Variant
from graphc.text.diagnostics import CudaError


def choose_variant(plan: Plan, machine: Machine, placed: Mapping[str, int]) -> Variant:
    """The first variant that fits; a ``CudaError`` that says of each why it does not."""
    refusals = []
    for variant in plan.variants:
        reasons = unmet(variant, machine, placed)
        if not reasons:
            return variant
        refusals.append(f"\n  {label(variant)}: " + "; ".join(reasons))
    raise CudaError(
        "choose a variant",
        "NO_ROUTE",
        f"no variant of plan '{plan.name}' fits this machine:{''.join(refusals)}",
        hint="compile it with a route that needs no peer access, such as host; 'graphc doctor' "
        "tests all pairs of GPUs",
    )


def unmet(variant: Variant, machine: Machine, placed: Mapping[str, int]) -> list[str]:
    reasons = []
    for each in variant.requires:
        why = machine.why_not(each.need.value, placed[each.source], placed[each.target])
        if why is not None:
            reasons.append(f"{each.need.value} from {each.source} to {each.target}: {why}")
    return reasons


def label(variant: Variant) -> str:
    return ", ".join(sorted(set(variant.routes.values()))) or "the only one"
