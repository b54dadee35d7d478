"""A file that is there whole or not at all, though a process writes it that may be lost."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peakward.records.errors import PeakwardError


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """The absolute path to write at first, for a rename to `path` once it is whole.

    It lies in a folder of its own beside `path`, which goes on leaving with all that is in it.

    Raises:
        PeakwardError: the path is taken, or its folder is not there or cannot be written.
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
