"""Command-line words to a command's options, with every complaint on one line."""

import contextlib
import io
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeVar

import msgspec
import tyro

from peakward.records.errors import PeakwardError

Options = TypeVar("Options", bound=msgspec.Struct)

_BOX = re.compile(r"\x1b\[[0-9;]*m|[│╭╮╰╯]")
_RULE = re.compile(r"─{3,}.*", re.DOTALL)


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
    return tuple("--" + name.strip("_").replace("_", "-") for name in kind.__struct_fields__)


def _unknown(kind: type[msgspec.Struct], word: str, prog: str) -> str:
    written = word.split("=", maxsplit=1)[0]
    near = get_close_matches(written, option_names(kind), n=3, cutoff=0.5)
    hint = f"perhaps {', '.join(near)}" if near else f"see `{prog} --help`"
    return f"expected an option of `{prog}`, got {written}: {hint}"


def _one_line(box: str) -> str:
    """The first paragraph of a box that tyro drew."""
    text = _BOX.sub("", box)
    first_line, _, body = text.partition("\n")
    paragraph = _RULE.sub("", body) or first_line
    return " ".join(paragraph.split()).rstrip(".")
