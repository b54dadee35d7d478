"""A file that is written whole or not at all."""

import os
import tempfile
from pathlib import Path

from peakward.records.errors import PeakwardError


def check(path: Path, *, overwrite: bool, by: str) -> None:
    """Refuse a place that a file cannot be written to.

    Args:
        by: how the caller asks for a file to be overwritten, for the message: "--force".

    Raises:
        PeakwardError: a file that exists (unless `overwrite`), or a place that cannot be written.
    """
    place = path.resolve()
    if path.is_dir() or not place.parent.is_dir():
        raise PeakwardError(f"expected a file in an existing folder, got {str(path)!r}")
    if place.exists() and not place.is_file():
        raise PeakwardError(f"expected a regular file, got {str(path)!r}: choose another place")
    if place.exists() and not overwrite:
        raise PeakwardError(f"expected a new file, got {str(path)!r}: overwrite it with {by}")
    if not os.access(place.parent, os.W_OK):
        raise PeakwardError(f"expected a writable folder, got {str(path.parent)!r}")


def write(path: Path, content: bytes) -> None:
    """Written beside its place, then renamed. A link stays: its file is replaced.

    Raises:
        PeakwardError: the folder is not there or cannot be written, or the disk is full.
    """
    temporary, place = None, path.resolve()
    try:
        with tempfile.NamedTemporaryFile(
            "wb", dir=place.parent, prefix=f".{place.name}.", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(content)
        # The temporary file is the owner's alone; a report gets what the umask grants.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(place)
    except OSError as error:
        raise PeakwardError(
            f"expected to write {path}, got: {error.strerror}; choose another place"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
