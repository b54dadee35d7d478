"""Errors whose message is meant for the user, and the text that goes into messages.

Views never check characters again, so all code that reads text from a file, another program or a user calls
`printable`, `quoted` or `one_line` first.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from typing import TypeVar


class PeakwardError(Exception):
    """Input that Peakward cannot serve. The message is one line: "expected …, got …", then what to do.

    The command line prints the message without a traceback and exits with `exit_code`. The message quotes the
    input, so it is made printable here.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(printable(message))
        self.exit_code = exit_code


class SourceError(PeakwardError):
    """The source of a module is missing or has changed. The error says nothing about the module itself."""


class OutOfTimeError(PeakwardError):
    """The requested work did not end in the available time. Nothing of it is stored."""


T = TypeVar("T")


def look_up(kind: str, name: str, rows: Mapping[str, T]) -> T:
    """The row of that name. Capitals must match, but the suggestions ignore them.

    Args:
        kind: what the rows are, with its article, for the message: "a model".

    Raises:
        PeakwardError: no such row; names the nearest ones, or all where none is near or there are two.
    """
    if name in rows:
        return rows[name]
    by_lower = {each.lower(): each for each in rows}
    near = difflib.get_close_matches(name[:LONGEST_QUOTE].lower(), list(by_lower), n=3, cutoff=0.4)
    if not near or len(rows) <= 2:
        raise PeakwardError(f"expected {kind}, got {quoted(name)}: there are {', '.join(rows)}")
    raise PeakwardError(
        f"expected {kind}, got {quoted(name)}: perhaps {', '.join(by_lower[each] for each in near)}"
    )


LONGEST_QUOTE = 80
"""Characters of what a message quotes."""
_PLAIN = (str, bytes, bool, int, float, complex, type(None), list, tuple, dict, set, os.PathLike)
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u.{4}|\\.", re.DOTALL)
_BEYOND_ASCII = re.compile(r"[^\x20-\x7e\t\n\r]+")


def printable(text: str) -> str:
    """The text, with characters that no terminal should receive written as Python escapes: "\\x1b[2J".

    These include line ends, invisible characters and characters that reverse the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def quoted(value: object) -> str:
    """Quotes a value short and on one line: plain values as Python writes them, others by their type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, _PLAIN):
        return f"a value of type {type(value).__name__}"
    if isinstance(value, str | bytes) and len(value) > LONGEST_QUOTE:
        return f"{value[:LONGEST_QUOTE]!r}…"
    try:
        written = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001  no integer of more than 4,300 digits is written; a repr inside may do anything
        return f"a value of type {type(value).__name__}"
    return written if len(written) <= LONGEST_QUOTE + 2 else f"{written[:LONGEST_QUOTE]}…"


def printable_json(text: str) -> str:
    """The JSON with every text made printable, keys included. The reader checks whether it is JSON at all."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: _shown(found[0]), text)
    if text.isprintable():
        return text
    return _BEYOND_ASCII.sub(lambda found: printable(found[0]).replace("\\", "\\\\"), text)


def _shown(escape: str) -> str:
    try:
        character = json.loads(f'"{escape}"')
    except ValueError:
        return escape
    if character.isprintable():
        return escape
    return printable(character).replace("\\", "\\\\")
