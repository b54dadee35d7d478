"""Writes a file that exists whole or not at all, even if the process that writes it is lost."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peakward.records.errors import PeakwardError


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """The absolute path to write at first; the file is renamed to `path` once it is whole.

    It lies in a folder of its own beside `path`, which is deleted on leaving with all its content.

    Raises:
        PeakwardError: The path is taken, or its folder does not exist or cannot be written.
    """
    if path.exists():
        raise PeakwardError(f"expected a new file to write, got one that exists, {path}: move it")
    try:
        scratch = tempfile.TemporaryDirectory(
            prefix=".peakward-", dir=path.absolute().parent, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise PeakwardError(
            f'expected a folder that can be written for {path}, got "{error.strerror}": '
            "name another"
        ) from error
    with scratch as folder:
        yield Path(folder) / path.name
