"""The parts of a GPU kernel's name as C++ writes it.

CUPTI demangles names one way (`(anonymous namespace)::`, `{lambda(float)#1}`), Nsight Systems another
(`<unnamed>::`, `[lambda(float) (instance 1)]`, literals with their type: `(int)128`); ROCm's may still be
mangled. Anybody may have written the file, so nothing here recurses without a bound or takes more than a few
passes over the text.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_LAMBDA = re.compile(r"\[lambda\(([^()\[\]]*)\) \(instance (\d+)\)\]")
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
    text = _LAMBDA.sub(r"{lambda(\1)#\2}", name.strip())
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
