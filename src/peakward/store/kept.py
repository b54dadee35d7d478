"""Records that are computed from others, kept on disk until the code that computes them changes.

Each is a file of its own, named by what it was made from and by the source of the rooms that make it. A
file that cannot be read or written is no error: the record is computed.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from peakward.records import codec
from peakward.records.errors import PeakwardError

R = TypeVar("R", bound=msgspec.Struct)
PLACE = "PEAKWARD_CACHE"
"""The folder's variable: else `peakward/plans` in the user's cache ($XDG_CACHE_HOME, else ~/.cache)."""
MOST_FILES = 2000
"""The most files, of some 30 kB each. The oldest are removed first."""
_ROOMS = ("hardware", "levers", "models", "prediction", "records", "stats")


def kept(parts: Sequence[object], kind: type[R], make: Callable[[], R]) -> R:
    """The record that `make` gives, from disk where the same code made it from the same parts before."""
    name = hashlib.sha256(_source())
    name.update(msgspec.json.encode((kind.__name__, parts)))
    folder = _folder()
    if folder is None:
        return make()
    file = folder / f"{name.hexdigest()[:32]}.json"
    with suppress(OSError, PeakwardError):
        return codec.from_json(file.read_bytes(), kind)
    made = make()
    with suppress(OSError):
        _write(file, codec.to_json(made))
    return made


def _folder() -> Path | None:
    """None for a user without a home."""
    if place := os.environ.get(PLACE):
        return Path(place)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "peakward" / "plans"
    except RuntimeError:
        return None


@cache
def _source() -> bytes:
    """A digest of all code that a prediction passes through: some 15 ms for 2 MB."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for room in _ROOMS:
        for file in sorted((package / room).rglob("*.py")):
            digest.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    return digest.digest()


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all, for several processes may keep the same record."""
    file.parent.mkdir(parents=True, exist_ok=True)
    older = sorted(file.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for each in older[: max(0, len(older) + 1 - MOST_FILES)]:
        each.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as written:
        try:
            written.write(data)
        except OSError:
            Path(written.name).unlink()
            raise
    Path(written.name).replace(file)
