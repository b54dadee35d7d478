"""A file that is written whole or not at all."""

import os
import tempfile
from pathlib import Path

from peakward.records.errors import PeakwardError


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
