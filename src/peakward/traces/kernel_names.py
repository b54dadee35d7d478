"""Kernel names short enough for a table's column that still tell kernels apart.

`void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>
>(int, …)` becomes `vectorized_elementwise_kernel<CUDAFunctor_add<float>>`. The short name leaves out
namespaces, parameters, result types, sizes, and types that it already has.

CUPTI demangles names one way (`(anonymous namespace)::`, `{lambda(float)#1}`), Nsight Systems another
(`<unnamed>::`, `[lambda(float) (instance 1)]`, literals with their type: `(int)128`); ROCm's may still be
mangled. Anybody may have written the file, so nothing here recurses without a bound or takes more than a few
passes over the text.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

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


_NUMBERED_LAMBDA = re.compile(r"\[lambda\(([^()\[\]]*)\) \(instance (\d+)\)\]")
_NOISE = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\.kd$")
_MANGLED = re.compile(r"_ZN?K?(?=\d)")
_MANGLED_LITERAL = re.compile(r"L[a-z]n?\d+E")
_COUNT = re.compile(r"[1-9]\d{0,3}")
_MEMORY = ("Memcpy", "Memset", "[CUDA mem")
_OPENING, _CLOSING = "<([{", ">)]}"


class Function(NamedTuple):
    """A kernel's name without its result type and parameters."""

    path: str
    """The name with its namespaces: `at::native::reduce_kernel`."""
    arguments: str
    """The arguments of its template, without the brackets; empty where there are none."""

    @property
    def own(self) -> str:
        """The name without namespaces."""
        return self.path.rpartition("::")[2]


def parse(name: str) -> Function:
    """The parts of a kernel's name. A name that is not C++ is only a path."""
    text = _tidy(name)
    if text.startswith(_MEMORY):
        return Function(text, "")
    if text.startswith("_Z"):
        return _mangled(text)
    text = before_last_group(text, "(", ")")
    head = before_last_group(text, "<", ">")
    arguments = text[len(head) + 1 : -1] if head != text else ""
    return Function(head.rstrip().rpartition(" ")[2] or text, arguments)


def split(text: str, separator: str) -> Iterator[str]:
    """The parts of an expression between separators outside all brackets."""
    depth, start, skip = 0, 0, len(separator)
    for at, letter in enumerate(text):
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth = max(depth - 1, 0)
        elif depth == 0 and at >= start and text.startswith(separator, at):
            yield text[start:at].strip()
            start = at + skip
    yield text[start:].strip()


def before_last_group(text: str, opening: str, closing: str) -> str:
    """The text before the bracket that closes at the end of the text, if there is one."""
    if not text.endswith(closing):
        return text
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == closing) - (text[at] == opening)
        if depth == 0:
            return text[:at]
    return text


def _tidy(name: str) -> str:
    text = _NUMBERED_LAMBDA.sub(r"{lambda(\1)#\2}", name.strip())
    return _NOISE.sub("", text).replace("operator ()", "operator()")


def _mangled(text: str) -> Function:
    """The function of a mangled name. Itanium's nested names are counted words, `_ZN5aiter8fmha_fwdE`: enough
    to tell kernels apart."""
    start = _MANGLED.match(text)
    path, end = _counted_words(text, start.end()) if start else ([], 0)
    rest = _MANGLED_LITERAL.sub("", text[end:])
    inner = (words for at in range(len(rest)) if (words := _counted_words(rest, at)[0]))
    return Function("::".join(path) or text, "::".join(next(inner, [])))


def _counted_words(text: str, at: int) -> tuple[list[str], int]:
    words: list[str] = []
    while number := _COUNT.match(text, at):
        at = number.end() + int(number[0])
        words.append(text[number.end() : at])
    return words, at
