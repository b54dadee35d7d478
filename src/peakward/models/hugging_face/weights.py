"""Finds the files that hold the weights of a configuration: only safetensors in its folder."""

import json
from pathlib import Path

from peakward.models.hugging_face import files
from peakward.records.errors import PeakwardError

WHOLE, INDEX, PARTS = "model.safetensors", "model.safetensors.index.json", "model*.safetensors"
TENSOR = {"dtype", "shape", "data_offsets"}
MAX_HEADER_BYTES = 2**25
"""The largest header that is read. That of the largest published model's files has 2**20 bytes."""


def weights(config: Path) -> tuple[Path, ...]:
    """The files of weights beside a configuration, symlinks followed; none where it stands alone.

    Each file lies in the configuration's folder or, for a snapshot in the hub's cache, among the blobs
    of its repository. Each is a safetensors file by its header, and so holds numbers and no code.

    Raises:
        PeakwardError: A file lies elsewhere, does not exist or is not a safetensors file.
    """
    folder = config.parent
    return tuple(dict.fromkeys(_checked(folder, name) for name in _names(folder)))


def _names(folder: Path) -> list[str]:
    """The files that transformers chooses: one with the whole model, else those in the index, else the
    parts."""
    if files.exists(folder / WHOLE) or (folder / WHOLE).is_symlink():
        return [WHOLE]
    index = folder / INDEX
    if not files.exists(index):
        return sorted(each.name for each in folder.glob(PARTS))
    named = files.configuration(index).get("weight_map")
    if (
        not isinstance(named, dict)
        or not named
        or not all(isinstance(each, str) for each in named.values())
    ):
        raise PeakwardError(
            f"expected a weight_map from tensors to files in {str(index)!r}, got none: download it again"
        )
    return sorted(set(named.values()))


def _checked(folder: Path, name: str) -> Path:
    """
    Raises:
        PeakwardError: as `weights` says.
    """
    whole = folder.resolve()
    homes = [whole]
    repository = whole.parent.parent
    if whole.parent.name == "snapshots" and files.REPOSITORY.fullmatch(repository.name):
        homes.append(repository / "blobs")
    try:
        path = (folder / name).resolve()
        if not any(path.is_relative_to(home) for home in homes):
            raise PeakwardError(
                f"expected weights inside {str(whole)!r}, got {name[:200]!r}, which lies outside: no file "
                "from elsewhere is read; copy it into the folder"
            )
        if not path.is_file():
            raise PeakwardError(
                f"expected the weights {name[:200]!r} in {str(whole)!r}, got no such file: download it again"
            )
        is_safetensors = _has_header(path)
    # No permission, a loop of links, a null byte in the name.
    except (OSError, RuntimeError, ValueError) as error:
        raise PeakwardError(
            f"expected weights to read in {str(whole)!r}, got {name[:200]!r}: {error}"
        ) from None
    if not is_safetensors:
        raise PeakwardError(
            f"expected weights in safetensors, got {name[:200]!r}, whose header is not theirs: convert it, "
            "for a pickle may run any code"
        )
    return path


def _has_header(path: Path) -> bool:
    """Whether a file begins with the length of a JSON object and with that object, which lists only
    tensors."""
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, n_bytes - 8):
            return False
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            return False
    return isinstance(header, dict) and all(
        isinstance(each, dict)
        and (name == "__metadata__" or {"dtype", "shape", "data_offsets"} <= each.keys())
        for name, each in header.items()
    )
