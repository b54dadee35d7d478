"""What `--model` names: a preset, a `config.json`, or a model in the local Hugging Face cache.

Files are read here and nothing is fetched: no network is touched, and none of Hugging Face's
packages is needed.
"""

import json
import os
import re
from pathlib import Path

from peakward.catalogue import models
from peakward.catalogue.hugging_face.shape import shape_of
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

CONFIG = "config.json"
MAX_BYTES = 2**24
"""A larger file is no configuration: the weights beside one are named by mistake."""

_REPOSITORY = re.compile(r"models--(\w[\w.-]{,95}?)--([\w.-]{1,96})", re.ASCII)
"""The cache's folder of ORG/NAME, which the hub limits to 96 characters."""


def model(name: str) -> ModelShape:
    """The shape of a preset, or of the model that a Hugging Face configuration describes.

    Args:
        name: a preset's, as "llama-3-8b"; else a `config.json` or the folder that holds one; else
            "org/name" of a model whose configuration is in the Hugging Face cache. The shape is
            named after the preset, the folder, or "org/name".

    Raises:
        PeakwardError: none of these, a file that is no configuration, or an architecture that no
            shape expresses.
    """
    path = Path(name)
    is_preset = any(preset.name == name for preset in models.MODELS)
    if not is_preset and _exists(path):
        path = path / CONFIG if path.is_dir() else path
        return _read(path, _name_of(path.parent))
    if is_preset or "/" not in name:
        return models.model(name)
    return _read(_cached(name), name)


def hub_cache() -> Path:
    """Where the client of the Hugging Face hub keeps files, by the variables that it reads."""
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{caches}/huggingface")
    hub = os.environ.get("HUGGINGFACE_HUB_CACHE", f"{home}/hub")
    cache = Path(os.environ.get("HF_HUB_CACHE", hub)).expanduser()
    return Path(os.path.expandvars(cache))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # Too long a name, or a folder that may not be entered.
        return False


def _name_of(folder: Path) -> str:
    """The folder's own; "org/name" where it is a snapshot in the hub's cache, named by a hash."""
    whole = folder.resolve() if folder.name == ".." else folder.absolute()
    cached = _REPOSITORY.fullmatch(whole.parent.parent.name)
    if cached and whole.parent.name == "snapshots":
        return "/".join(cached.groups())
    if not (whole.name and whole.name.isprintable()):
        raise PeakwardError(
            f"expected a folder whose name can stand in tables, got {whole.name!r}: rename it"
        )
    return whole.name


def _cached(name: str) -> Path:
    """The configuration at the revision that the hub's client takes for "main"."""
    folder = f"models--{name.replace('/', '--')}"
    if name.endswith(".json") or name.count("/") != 1 or not _REPOSITORY.fullmatch(folder):
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


def _read(path: Path, name: str) -> ModelShape:
    """The shape that a configuration's file describes.

    Raises:
        PeakwardError: it cannot be read or is no JSON object; it has a preset's name and another
            shape; or as `shape_of`.
    """
    shape = shape_of(_object(path), name)
    if any(preset.name == name and preset != shape for preset in models.MODELS):
        raise PeakwardError(
            f"expected a folder with a name of its own, got {name}, which is a preset of another "
            "shape: rename it"
        )
    return shape


def _object(path: Path) -> dict[str, object]:
    try:
        if not path.is_file():
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
        config = json.loads(data) if len(data) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise PeakwardError(
            f"expected a configuration in {str(path)!r}, got no JSON object of at most "
            f"{MAX_BYTES:,} bytes: give the {CONFIG} of a model"
        )
    return config
