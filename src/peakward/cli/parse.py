"""Command-line words to a command's options, and one word to one value: a complaint is one line."""

import contextlib
import io
import itertools
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import TypeVar

import msgspec
import tyro
from tyro import _strings

from peakward.records import check
from peakward.records.check import GIB
from peakward.records.errors import PeakwardError
from peakward.report.columns import wrap

Options = TypeVar("Options", bound=msgspec.Struct)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = " │╭╮╰╯|+"
_RULE = re.compile(r"[─-]*")
"""Or an empty line. tyro draws with ASCII, and a rule more, where stdout takes no UTF-8."""


def parse(kind: type[Options], arguments: Sequence[str], *, prog: str) -> Options | None:
    """The options that the words set, or None where they asked for help, which is then printed.

    Raises:
        PeakwardError: an unknown option (with the nearest ones), or one without its value.
    """
    complaint = io.StringIO()
    opening = _opening(kind)
    try:
        with (
            contextlib.redirect_stderr(complaint),
            _trusting_defaults(),
            _whole_paragraphs(opening),
        ):
            options, unknown = tyro.cli(
                kind,
                args=list(arguments),
                prog=prog,
                description=opening,
                return_unknown_args=True,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as stop:
        if not stop.code:
            return None
        raise PeakwardError(f"{_one_line(complaint.getvalue())}: see `{prog} --help`") from None
    if unknown:
        raise PeakwardError(_unknown(kind, unknown[0], prog))
    return options


@contextlib.contextmanager
def _trusting_defaults() -> Iterator[None]:
    """Inside, typeguard is a module that checks nothing. tyro imports it to hold each option's default to its
    type, as mypy does here already, and the import takes 60 ms of every command's start."""
    if "typeguard" in sys.modules:
        yield
        return
    sys.modules["typeguard"] = stand_in = ModuleType("typeguard")
    stand_in.check_type = lambda value, _kind: value  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del sys.modules["typeguard"]


def _opening(kind: type[msgspec.Struct]) -> str:
    """The docstring in lines of the terminal's width: tyro prints the opening of a help as it is given, and
    paragraphs of up to 463 characters broke inside words."""
    return wrap(_joined(kind.__doc__ or ""), shutil.get_terminal_size().columns)


@contextlib.contextmanager
def _whole_paragraphs(opening: str) -> Iterator[None]:
    """Inside, tyro breaks the text of an option where the terminal ends, and leaves the opening as it is. It
    takes an indented line of source for a new paragraph, which left single words on lines of their own."""
    before = _strings.remove_single_line_breaks
    _strings.remove_single_line_breaks = lambda helptext: (
        helptext if helptext == opening else _joined(helptext)
    )
    try:
        yield
    finally:
        _strings.remove_single_line_breaks = before


def _joined(helptext: str) -> str:
    """The text with each of its paragraphs, which empty lines part, in one line."""
    return "\n\n".join(" ".join(each.split()) for each in re.split(r"\n\s*\n", helptext))


def option_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The options of a command as they are written, "--batch-size" and so on."""
    names: list[str] = []
    for field in msgspec.structs.fields(kind):
        if isinstance(field.default, msgspec.Struct):
            names += option_names(type(field.default))
        elif tyro.conf.Positional not in getattr(field.type, "__metadata__", ()):
            names.append("--" + field.name.strip("_").replace("_", "-"))
    return tuple(names)


def _unknown(kind: type[msgspec.Struct], word: str, prog: str) -> str:
    written = word.split("=", maxsplit=1)[0]
    near = get_close_matches(written, option_names(kind), n=3, cutoff=0.5)
    hint = f"perhaps {', '.join(near)}" if near else f"see `{prog} --help`"
    shown = written if written.isprintable() and written else repr(written)
    return f"expected an option of `{prog}`, got {shown}: {hint}"


def _one_line(box: str) -> str:
    """The first paragraph of a box that tyro drew, under its title."""
    lines = [_COLOUR.sub("", line).strip(_FRAME) for line in box.splitlines()]
    body = itertools.dropwhile(_RULE.fullmatch, lines[1:])
    paragraph = itertools.takewhile(lambda line: not _RULE.fullmatch(line), body)
    return " ".join(" ".join(paragraph).split()).rstrip(".")


def split(text: str, option: str) -> tuple[str, ...]:
    """A comma list's items, each once, in the order given."""
    items = tuple(dict.fromkeys(item.strip() for item in text.split(",")))
    if "" in items:
        raise PeakwardError(f"expected a value or a comma list for {option}, got {text!r}")
    return items


def whole(text: str, option: str, *, low: int, high: int) -> int:
    """A whole number between two bounds, both allowed; `_` may group digits."""
    # More digits than any bound has: int() refuses 4,300 of them with an error of its own.
    plausible = re.fullmatch(r"[+-]?[0-9_]{1,20}", text)
    try:
        number = int(text) if plausible else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise PeakwardError(
            f"expected a whole number from {low:,} to {high:,} for {option}, got {text[:40]!r}"
        )
    return number


def memory_bytes(text: str, option: str) -> int:
    """Bytes of a size written in GiB."""
    size = _number(text)
    if size is None or not 2**-10 <= size <= 2**20:
        raise PeakwardError(
            f"expected a size in GiB from 1/1024 to 1,048,576 for {option}, got {text[:40]!r}: "
            "for example 24 or 0.5"
        )
    return round(size * GIB)


def share(text: str, option: str) -> float:
    """A part of one, written "0.03" or "3%"."""
    number = _number(text.removesuffix("%"))
    value = number / 100 if number is not None and text.endswith("%") else number
    return check.share(text if value is None else value, option, example="0.03 or 3%")


def amount(text: str, option: str, *, high: float) -> float:
    """A sum of money, 0 or more."""
    number = _number(text)
    return check.amount(text if number is None else number, option, high=high)


def number(text: str, option: str) -> float:
    """A finite number."""
    value = _number(text)
    if value is None:
        raise PeakwardError(f"expected a number for {option}, got {text[:40]!r}: for example 0.8")
    return value


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
