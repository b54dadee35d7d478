"""Keeps files that were made from text on disk, by the hash of what made them. Imports no torch."""

import hashlib
import os
import tempfile
from pathlib import Path

from peakward.records.errors import PeakwardError


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
