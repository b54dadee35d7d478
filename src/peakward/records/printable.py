"""Makes text from a file, another program or a user safe for terminals and pages.

Views never check characters again, so all code that reads text from outside calls one of these functions.
"""

import json
import re

_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u.{4}|\\.", re.DOTALL)
_BEYOND_ASCII = re.compile(r"[^\x20-\x7e\t\n\r]+")


def printable(text: str) -> str:
    """The text, with characters that no terminal should receive written as Python escapes: "\\x1b[2J".

    These include line ends, invisible characters and characters that reverse the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


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
