"""Kernel names short enough for a table's column that still tell kernels apart.

`void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>
>(int, …)` becomes `vectorized_elementwise_kernel<CUDAFunctor_add<float>>`. The short name leaves out
namespaces, parameters, result types, sizes, and types that it already has.
"""

import re

from peakward.traces.cpp_names import before_last_group, parse, split

WIDTH = 70
"""The width in characters above which arguments of arguments are left out."""
_DEEPEST = 3
_MOST = 3
"""The most arguments of a name that is still too long."""
_NESTED = 12
"""The most nested templates that are followed, including those that do not count as depth."""
_READ = 4096
"""The most characters of a template's arguments that are read. Real ones differ long before that."""

_BARE = re.compile(r"Kernel\d?|device_kernel|kentry|_kernel_agent")
"""Kernels that are named after the function they run."""
_COMMON = re.compile(r"kernel|globalKernel|static_kernel")
"""Names that need the namespace in front."""
_THROUGH = re.compile(r"gpu_\w*kernel\w*|func_wrapper_t|enable_\w+|ReduceOp|\w+_traits")
"""Templates that only pass on their arguments."""
_APPLIED = re.compile(r"[AB]?UnaryFunctor|BinaryFunctor")
"""Templates that mean nothing without their arguments."""
_SILENT = re.compile(
    r"[Aa]rray|\w*OffsetCalculator|(?:Load|Store)With\w*|\w*Metadata|T\d+|unsigned int|.*\*"
)
"""Types that tell an expert nothing: they say how elements are addressed."""
_LITERAL = re.compile(r"(?:\([\w: ]+\))?-?\d+u?l{0,2}|true|false")
_LAMBDA = re.compile(r"\{lambda\((.*)\)#\d+\}")


def short_name(name: str) -> str:
    """A kernel's name for a table. A name that is not C++ stays as it is."""
    function = parse(name)
    own = function.own or function.path or name
    if _COMMON.fullmatch(own):
        own = "::".join(function.path.split("::")[-2:])
    arguments = function.arguments[:_READ]
    for depth in range(_DEEPEST, 0, -1):
        told = _told(arguments, depth, set())
        if len(short := _shown(own, told)) <= WIDTH:
            return short
    return _shown(own, told[:_MOST])


def _shown(own: str, arguments: list[str]) -> str:
    if not arguments:
        return own
    if _BARE.fullmatch(own):
        return arguments[0]
    return f"{own}<{', '.join(arguments)}>"


def _told(arguments: str, depth: int, seen: set[str], nesting: int = 0) -> list[str]:
    """The names in a template's arguments that are not in `seen`, and adds them to it."""
    if depth == 0 or nesting == _NESTED:
        return []
    return [
        text
        for argument in split(arguments, ",")
        if argument and not _LITERAL.fullmatch(argument)
        for text in _expression(argument, depth, seen, nesting)
    ]


def _expression(text: str, depth: int, seen: set[str], nesting: int) -> list[str]:
    """The new names in a type or function: its own, and that of its purpose."""
    base, taken = _named(text)
    head, bracket, rest = base.partition("<")
    if not head or _SILENT.fullmatch(head):
        return []
    inner = rest.rpartition(">")[0] if bracket else taken
    if _THROUGH.fullmatch(head):
        return _new(_size(head, inner), seen) + _told(inner, depth, seen, nesting + 1)
    told = _told(inner, depth - (not _APPLIED.fullmatch(head)), seen, nesting + 1)
    return _new(f"{head}<{', '.join(told)}>" if told else head, seen)


def _size(head: str, arguments: str) -> str:
    """The head size with which attention's traits begin: each size is another kernel."""
    first = next(split(arguments, ","))
    return (
        first.rpartition(")")[2] if head.endswith("_traits") and _LITERAL.fullmatch(first) else ""
    )


def _new(text: str, seen: set[str]) -> list[str]:
    if not text or text in seen:
        return []
    seen.add(text)
    return [text]


def _named(text: str) -> tuple[str, str]:
    """The last name of a path that is no lambda and no operator, and the parameters of the last lambda."""
    base, taken = "", ""
    for part in split(_unwrapped(text), "::"):
        if found := _LAMBDA.match(part):
            taken = found[1]
        elif not part.startswith(("operator", "{")):
            base = before_last_group(part, "(", ")")
    return base.removesuffix(" const"), taken


def _unwrapped(text: str) -> str:
    """The function behind an address, `&(float silu<float>(float const&))`, without its result type."""
    text = text.lstrip("&*").removeprefix("void ")
    if text.startswith("(") and text.endswith(")"):
        text = before_last_group(text[1:-1], "(", ")")
        return text.rpartition(" ")[2]
    return text
