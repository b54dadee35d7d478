"""What `--model` names: a preset, a `config.json`, or a model in the local Hugging Face cache.

Files are read here and nothing is fetched: no network is touched, and none of Hugging Face's
packages is needed.
"""

from pathlib import Path

from peakward.cli.module_names import expect_shape
from peakward.models import presets
from peakward.models.hugging_face import files
from peakward.models.hugging_face.shape import shape_of
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape


def model(name: str) -> ModelShape:
    """The shape of a preset, or of the model that a Hugging Face configuration describes.

    Args:
        name: a preset's, as "llama-3-8b"; else a `config.json` or the folder that holds one; else
            "org/name" of a model whose configuration is in the Hugging Face cache. The shape is
            named after the preset, the folder, or "org/name".

    Raises:
        PeakwardError: none of these, a file that is no configuration, or an architecture that no
            shape expresses; or a module's source, which has no shape.
    """
    expect_shape(name)
    path = Path(name)
    is_preset = any(preset.name == name for preset in presets.MODELS)
    if not is_preset and files.exists(path):
        path = files.found(name)
        return _read(path, _name_of(path.parent))
    if is_preset or "/" not in name:
        return presets.model(name)
    return _read(files.cached(name), name)


def _name_of(folder: Path) -> str:
    """The folder's own; "org/name" where it is a snapshot in the hub's cache, named by a hash."""
    whole = folder.resolve() if folder.name == ".." else folder.absolute()
    cached = files.REPOSITORY.fullmatch(whole.parent.parent.name)
    if cached and whole.parent.name == "snapshots":
        return "/".join(cached.groups())
    if not (whole.name and whole.name.isprintable()):
        raise PeakwardError(
            f"expected a folder whose name can stand in tables, got {whole.name!r}: rename it"
        )
    return whole.name


def _read(path: Path, name: str) -> ModelShape:
    """The shape that a configuration's file describes.

    Raises:
        PeakwardError: it cannot be read or is no JSON object; it has a preset's name and another
            shape; or as `shape_of`.
    """
    shape = shape_of(files.configuration(path), name)
    if any(preset.name == name and preset != shape for preset in presets.MODELS):
        raise PeakwardError(
            f"expected a folder with a name of its own, got {name}, which is a preset of another "
            "shape: rename it"
        )
    return shape
