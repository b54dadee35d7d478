"""Files beside the database: large ones named by their content's hash, small ones written whole."""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from peakward.records.errors import PeakwardError

_NAME = re.compile(r"[0-9a-f]{16}(\.(?:json|pickle)\.gz)")
"""A trace ends in .json.gz, a snapshot in .pickle.gz."""


def keep(db_path: Path, file: Path) -> str:
    """Move a trace or a snapshot to the database's folder of files; returns the name to store.

    The file arrives whole and durable, or not at all. Equal files are kept once. Nothing is overwritten.

    Raises:
        PeakwardError: no such file, no room, or a damaged file of that name is there already.
    """
    try:
        name = f"{_digest(file)}{''.join(file.suffixes[-2:])}"
        kept = _folder(db_path) / name
        if kept.exists():
            _check_whole(kept)
            file.unlink()
        else:
            kept.parent.mkdir(exist_ok=True)
            _move(file, kept)
    except OSError as error:
        raise PeakwardError(
            f'expected to keep {file} beside {db_path}, got "{error.strerror}": '
            "check the folder and its free space"
        ) from error
    return name


def path_of(db_path: Path, name: str) -> Path:
    """The path of the kept file with this name.

    Raises:
        PeakwardError: it is not there, or the name is none that `keep` gives.
    """
    if not _NAME.fullmatch(name):
        raise PeakwardError(f"expected the name of a kept file, got {name!r}: it was not stored")
    path = _folder(db_path) / name
    if not path.is_file():
        raise PeakwardError(
            f"expected a file at {path}, got none: copy the folder with the database, or profile "
            "the case again"
        )
    return path


def _folder(db_path: Path) -> Path:
    return db_path.with_name(f"{db_path.name}.files")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def _check_whole(kept: Path) -> None:
    if _digest(kept) != kept.name.partition(".")[0]:
        raise PeakwardError(
            f"expected {kept} to hold what it is named after, got something else: move it away"
        )


def _move(file: Path, kept: Path) -> None:
    """Move by a rename, which is atomic; from another file system, rename a copy."""
    _sync(file)
    try:
        file.rename(kept)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with tempfile.TemporaryDirectory(prefix=".keeping-", dir=kept.parent) as scratch:
            copy = Path(shutil.copyfile(file, Path(scratch) / kept.name))
            _sync(copy)
            copy.rename(kept)
        file.unlink()
    _sync(kept.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
