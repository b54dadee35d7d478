"""Repairs invalid JSON from PyTorch, or from programs that write through it."""

import re

_BARE = re.compile(rb'("(?:[^"\\]|\\.)*+")|-?\b(?:NaN|nan|Infinity|infinity|inf)\b', re.DOTALL)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)', re.DOTALL)
_SURROGATES = re.compile(
    rb"\\\\|(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_CONTROL = re.compile(rb"[\x00-\x1f]")


def repaired(text: bytes) -> bytes:
    """Valid JSON: invalid numbers become null; half surrogates and invalid UTF-8 become U+FFFD; control
    characters in strings become spaces; a backslash that escapes nothing stands for itself."""
    text = text.decode("utf-8", "replace").encode()
    text = _CONTROL.sub(b" ", text)
    text = _BARE.sub(lambda match: match[1] or b"null", text)
    text = _BAD_ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    return _SURROGATES.sub(_whole_surrogate, text)


def _whole_surrogate(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] or match[0] == b"\\\\" else b"\\ufffd"
