"""Command-line words to a command's options, with every complaint on one line."""

import contextlib
import io
import itertools
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeVar

import msgspec
import tyro

from peakward.records.errors import PeakwardError

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
    try:
        with contextlib.redirect_stderr(complaint):
            options, unknown = tyro.cli(
                kind,
                args=list(arguments),
                prog=prog,
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
