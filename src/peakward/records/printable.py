"""Text that a file, another program or a user wrote, made fit for a terminal and a page where it comes in.

No view looks at characters again, so whatever reads text from outside calls one of these two.
"""

import json
import re

_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u.{4}|\\.", re.DOTALL)
_BEYOND_ASCII = re.compile(r"[^\x20-\x7e\t\n\r]+")


def printable(text: str) -> str:
    """The text with what no terminal should be sent written as Python writes it: "\\x1b[2J".

    Line ends, invisible characters and those that turn the direction of writing are among it.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def printable_json(text: str) -> str:
    """JSON whose every text is printable, keys included. Whether it is JSON at all is for its reader."""
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
