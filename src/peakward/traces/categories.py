"""The category of GPU work, by its name."""

from peakward.traces.category_rules import RULES, WRAPPER, Category
from peakward.traces.cpp_names import parse
from peakward.traces.fused_category import fused_category
from peakward.traces.inductor import fused
from peakward.traces.table import GpuKind

__all__ = ["Category", "category"]


def category(name: str, kind: GpuKind) -> Category:
    """The category of a kernel, copy or set. Ask once for each name of a trace."""
    if kind is not GpuKind.KERNEL:
        return Category.MEMORY
    if kernel := fused(name):
        return fused_category(kernel)
    told = _telling(name)
    return next((rule.category for rule in RULES if rule.pattern.search(told)), Category.OTHER)


def _telling(name: str) -> str:
    """The part of a name that tells the kernel's purpose."""
    function = parse(name)
    if function.arguments and WRAPPER.search(function.own):
        return f"{function.path}<{function.arguments}>"
    return function.path
