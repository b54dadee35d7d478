"""Finds and reads the configurations of Hugging Face models.

Only local files are read. Nothing is fetched from the network, and none of Hugging Face's packages is
needed.
"""

import json
import os
import re
from pathlib import Path

from peakward.records.errors import PeakwardError
from peakward.records.printable import printable_json

CONFIG = "config.json"
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


def configuration(path: Path) -> dict[str, object]:
    """The JSON object that a file holds; its texts come in printable.

    Raises:
        PeakwardError: it cannot be read, or holds none.
    """
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
        text = data.decode("utf-8-sig") if len(data) <= MAX_BYTES else ""
        config = json.loads(printable_json(text))
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise PeakwardError(
            f"expected a configuration in {str(path)!r}, got no JSON object of at most "
            f"{MAX_BYTES:,} bytes: give the {CONFIG} of a model"
        )
    return config
