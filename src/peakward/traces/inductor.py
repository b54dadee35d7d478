"""Reads the names of the kernels that torch's Inductor generates.

Inductor names a kernel `triton_<kind>_fused_<operators>_<number>`. The kind is the first three letters of how
the kernel is scheduled. The operators are those of the graph before decomposition, sorted, each once, joined
with underscores (torch 2.13: `_inductor/codegen/triton.py`, `define_kernel`; `_inductor/utils.py`,
`get_fused_kernel_name`). Operators' own names have underscores too, so they are looked up in a list.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple, cast, get_args

Kind = Literal["poi", "red", "per", "spl", "tem", "for", "unk"]
"""Pointwise, reduction, persistent reduction, split scan, template, foreach, unknown."""

_FUSED = re.compile(rf"triton_({'|'.join(get_args(Kind))})_fused(?:_(\w*))?")
_NUMBER = re.compile(r"\d+")
# Triton before 3.0 ended names with the arguments it specialised on: `_0d1d2de`.
_SPECIALISED = re.compile(r"\d[\dcde]+")


class Fused(NamedTuple):
    """A kernel that Inductor generated."""

    kind: Kind
    ops: tuple[str, ...]
    """The fused operators. Words that no known operator accounts for stay together as one piece."""


@cache
def operators() -> frozenset[str]:
    """The operator names that Inductor joins, as far as they are known."""
    text = files("peakward.traces").joinpath("operators.txt").read_text(encoding="utf-8")
    return frozenset(
        word for line in text.splitlines() if not line.startswith("#") for word in line.split()
    )


def fused(name: str) -> Fused | None:
    """The parts of an Inductor kernel's name; None for any other name."""
    if (found := _FUSED.search(name)) is None:
        return None
    return Fused(cast(Kind, found[1]), tuple(_pieces(_words(found[2] or ""))))


def fused_ops(name: str) -> tuple[str, ...]:
    """The operators that an Inductor kernel fuses; none for any other kernel."""
    return kernel.ops if (kernel := fused(name)) else ()


def _words(text: str) -> list[str]:
    """The words of a name, without the number at its end."""
    words = text.split("_") if text else []
    if len(words) > 1 and _NUMBER.fullmatch(words[-2]) and _SPECIALISED.fullmatch(words[-1]):
        words.pop()
    if words and _NUMBER.fullmatch(words[-1]):
        words.pop()
    return words


def _pieces(words: list[str]) -> Iterator[str]:
    """The longest operator from each word on. Operators are sorted, so a word that would step back belongs to
    an unknown name."""
    start, known_until, last = 0, 0, ""
    while start < len(words):
        op = _longest(words, start)
        if op is None or op <= last:
            start += 1
            continue
        if known_until < start:
            yield "_".join(words[known_until:start])
        yield op
        start += op.count("_") + 1
        known_until, last = start, op
    if known_until < start:
        yield "_".join(words[known_until:])


def _longest(words: list[str], start: int) -> str | None:
    for end in range(min(len(words), start + _most_words()), start, -1):
        if (candidate := "_".join(words[start:end])) in operators():
            return candidate
    return None


@cache
def _most_words() -> int:
    return max(op.count("_") + 1 for op in operators())
