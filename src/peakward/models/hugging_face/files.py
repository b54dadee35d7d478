"""Finds and reads the configurations and the weights of Hugging Face models.

Only local files are read, and of weights only safetensors. Nothing is fetched from the network, and none of
Hugging Face's packages is needed. A configuration whose numbers no model can have is refused before anything
is built from them: transformers builds as it is told, a list entry and a module for each of 10 million
layers, a name for each of 100 million labels.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from peakward.models.presets import LARGEST
from peakward.records.errors import PeakwardError, printable_json, quoted

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
"""The configuration of an adapter, which is a few matrices beside those of a model that lies elsewhere."""
MAX_BYTES = 2**24
"""The size of the largest configuration. A larger file was named by mistake, such as the weights beside
it."""
REPOSITORY = re.compile(r"models--(\w[\w.-]{,95}?)--([\w.-]{1,96})", re.ASCII)
"""The name of the cache's folder for ORG/NAME, which the hub limits to 96 characters."""


def hub_cache() -> Path:
    """The folder in which the client of the Hugging Face hub keeps files, by the variables that it
    reads."""
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{caches}/huggingface")
    hub = os.environ.get("HUGGINGFACE_HUB_CACHE", f"{home}/hub")
    cache = Path(os.environ.get("HF_HUB_CACHE", hub)).expanduser()
    return Path(os.path.expandvars(cache))


def exists(path: Path) -> bool:
    """Whether the file or folder exists."""
    try:
        return path.exists()
    except OSError:  # The name is too long, or a folder may not be entered.
        return False


def found(name: str) -> Path:
    """The configuration that a file, a folder, or "org/name" in the local cache stands for.

    Raises:
        PeakwardError: None of these exists. `configuration` says whether the file can be read.
    """
    path = Path(name)
    if exists(path):
        return path / CONFIG if path.is_dir() else path
    return cached(name)


def with_weights(name: str) -> Path:
    """As `found`, of a model that has weights of its own; a preset's are random.

    Raises:
        PeakwardError: there is no such model.
    """
    if "/" not in name and not exists(Path(name)):
        raise PeakwardError(
            f"expected a model with weights of its own, got {quoted(name)}: give smollm2, a folder with "
            "safetensors, ORG/NAME in the local cache or a .gguf file"
        )
    return found(name)


def cached(name: str) -> Path:
    """The configuration at the revision that the hub's client takes for "main"."""
    folder = f"models--{name.replace('/', '--')}"
    if name.endswith(".json") or name.count("/") != 1 or not REPOSITORY.fullmatch(folder):
        raise PeakwardError(
            f"expected a model, got {name[:80]!r}: there is no such file or folder; "
            f"give a preset's name, a {CONFIG} or ORG/NAME"
        )
    repository = hub_cache() / folder
    main = repository / "refs" / "main"
    revision = main.read_text(errors="replace").strip() if main.is_file() else ""
    path = repository / "snapshots" / revision / CONFIG
    if not revision or not path.is_file():
        raise PeakwardError(
            f"expected a model, got {name!r}: there is no such folder, and no {CONFIG} of it in "
            f"{str(hub_cache())!r}; get it with `hf download {name} {CONFIG}`"
        )
    return path


def title(config: Path) -> str:
    """The name of the model that a configuration lies beside: ORG/NAME in the hub's cache, whose folders are
    named by hashes, else that of the folder."""
    folder = config.parent.resolve()
    repository = _repository(folder)
    return "/".join(repository.groups()) if repository else folder.name or config.name


def _repository(folder: Path) -> re.Match[str] | None:
    """The name of the repository of which a folder is a snapshot in the hub's cache, in its parts."""
    name = folder.parent.parent.name
    return REPOSITORY.fullmatch(name) if folder.parent.name == "snapshots" else None


def configuration(path: Path, advice: str = f"give the {CONFIG} of a model") -> dict[str, object]:
    """The JSON object that a file holds; its texts come in printable.

    Args:
        advice: what to do where the file holds none.

    Raises:
        PeakwardError: it cannot be read, or holds none.
    """
    try:
        if not path.is_file():
            if path.name == CONFIG and (path.parent / ADAPTER).is_file():
                raise PeakwardError(
                    f"expected a model, got an adapter in {str(path.parent)!r}: merge it into its model "
                    "first (peft's merge_and_unload, then save_pretrained)"
                )
            raise PeakwardError(
                f"expected a configuration in {str(path)!r}, got no such file: "
                f"give a {CONFIG}, or the folder that holds one"
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PeakwardError(
            f"expected a configuration to read in {str(path)!r}, got: {error.strerror}"
        ) from None
    try:
        text = data.decode("utf-8-sig") if len(data) <= MAX_BYTES else ""
        config = json.loads(printable_json(text))
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise PeakwardError(
            f"expected a configuration in {str(path)!r}, got no JSON object of at most "
            f"{MAX_BYTES:,} bytes: {advice}"
        )
    return config


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
    if exists(folder / WHOLE) or (folder / WHOLE).is_symlink():
        return [WHOLE]
    index = folder / INDEX
    if not exists(index):
        return sorted(each.name for each in folder.glob(PARTS))
    named = configuration(index, "download it again").get("weight_map")
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
    if _repository(whole) is not None:
        homes.append(whole.parent.parent / "blobs")
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


MOST_LAYERS: Final = LARGEST["n_layers"]
MOST_COUNTED: Final = 2**15
"""The largest number of experts, heads, labels or codebooks, each of which may be an object of its own.
It is twice the largest default of transformers' 188 causal language models."""
MOST: Final = 2**25
"""The largest other size, such as a vocabulary or a context. The largest default is 20 million."""
_LAYERS = re.compile(r"layers?$|blocks?$|depth$")
_COUNTS = re.compile(r"^(num|n|number_of)_(?!(positions?|position_embeddings|embd|ctx|inner)$)")
_PER_LAYER = re.compile(r"layer|block|pattern")
_NO_SIZE = re.compile(r"theta|seed|_(id|ids|index)$")


def refuse_impossible_sizes(config: dict[str, object], name: str) -> None:
    """Refuses a configuration from which no model could be built in reasonable time.

    Raises:
        PeakwardError: An integer or a list is larger than any published model's; the error names the
        first.
    """
    for key, size, most in _sizes(config):
        if size > most:
            # Python refuses to write out a number of more than 4300 digits.
            got = f"{size:,}" if size < 10**18 else "10**18 or more"
            raise PeakwardError(
                f"expected {key[:80]!r} of {name} to be at most {most:,}, got {got}: no published model "
                "is so large"
            )


def _sizes(config: dict[str, object]) -> Iterator[tuple[str, int, int]]:
    """Each integer and each list, at any depth, with its key and its limit."""
    left: list[tuple[str, object]] = list(config.items())
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(str(inner), each) for inner, each in value.items()]
        elif isinstance(value, list):
            yield key, len(value), MOST_LAYERS if _PER_LAYER.search(key) else MOST_COUNTED
            left += [(key, each) for each in value]
        elif isinstance(value, str) and _PER_LAYER.search(key):
            yield key, len(value), MOST_LAYERS
        elif isinstance(value, int) and not isinstance(value, bool) and not _NO_SIZE.search(key):
            yield key, value, _most(key)


def _most(key: str) -> int:
    if _LAYERS.search(key):
        return MOST_LAYERS
    return MOST_COUNTED if _COUNTS.search(key) else MOST
