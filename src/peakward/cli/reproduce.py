"""A case to the command line that measures exactly it."""

import shlex

from peakward.cli.module_names import is_source
from peakward.cli.options import SHAPE_BOUNDS, shapes
from peakward.cli.values import GIB
from peakward.cli.vocabulary import ShapeOptions
from peakward.levers.axis import written
from peakward.levers.registry import AXES
from peakward.records.case import (
    AS_WRITTEN,
    Case,
    Configuration,
    ConfiguredCase,
    ModelCase,
    ModuleCase,
    Workload,
)
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape


def to_command(case: Case, model: str | None = None) -> str | None:
    """The `peakward bench` line whose one case equals `case`; None where no options say it.

    Operators, pieces of code, live steps and modules, batches of varying length or of text, and shapes
    that differ from a named model in more than its sizes, or whose names do not say so, have none: their
    study, or Python, reproduces them.

    Args:
        model: what `--model` said where the case was made. A shape from a file needs it: its name
            is the folder's, and does not say where that is.
    """
    if isinstance(case, ModuleCase):
        return _module_command(case)
    if not isinstance(case, ModelCase):
        return None
    said = (case.model.name.partition(":")[0], *(() if model is None else (model,)))
    names = [name for name in said if name != "None"]  # As a value tyro reads that as none given.
    model_words = next(filter(None, (_model_words(case.model, name) for name in names)), None)
    work = case.workload
    if model_words is None or work.varying_seq_lens or work.padding != "none" or work.data:
        return None
    return _command(case, model_words, Configuration())


def _module_command(case: ModuleCase) -> str | None:
    """Finds the same case for as long as its source is as it was."""
    if not is_source(case.source):
        return None
    return _command(case, ["--model", case.source], AS_WRITTEN)


def _command(case: ConfiguredCase, model_words: list[str], start: Configuration) -> str:
    words = ["peakward", "bench", *model_words, *_workload_words(case.workload)]
    words += _configuration_words(case.configuration, start)
    if case.memory_limit_bytes is not None:
        words += ["--memory-limit", repr(case.memory_limit_bytes / GIB)]
    return shlex.join([*words, "--device", case.device])


def _model_words(shape: ModelShape, name: str) -> list[str] | None:
    """The name and the sizes that differ from that model's, where these give exactly the shape."""
    preset = _named(name, {})
    if preset is None:
        return None
    sizes = {
        part: str(getattr(shape, part))
        for part in SHAPE_BOUNDS
        if getattr(shape, part) != getattr(preset, part)
        # The option's default for --n-kv-heads follows --n-heads, so the two go together.
        or (part == "n_kv_heads" and shape.n_heads != preset.n_heads)
    }
    if _named(name, sizes) != shape:
        return None
    words = ["--model", name]
    for part, size in sizes.items():
        words += ["--" + part.replace("_", "-"), size]
    return words


def _named(name: str, sizes: dict[str, str]) -> ModelShape | None:
    """The one shape that `--model` and the options of its sizes mean."""
    if name.startswith("-"):  # The parser would take it for an option.
        return None
    try:
        found = shapes(ShapeOptions(model=name, **sizes), default=name)
    except PeakwardError:
        return None
    return found[0] if len(found) == 1 else None


def _workload_words(workload: Workload) -> list[str]:
    words = ["--batch-size", str(workload.batch_size), "--seq-len", str(workload.seq_len)]
    words += ["--pass", workload.pass_]
    if workload.accumulate != 1:
        words += ["--accumulate", str(workload.accumulate)]
    if workload.seed != 0:
        words += ["--seed", str(workload.seed)]
    return words


def _configuration_words(configuration: Configuration, start: Configuration) -> list[str]:
    words = []
    for axis, value in ((axis, axis.value(configuration)) for axis in AXES):
        if value != axis.value(start):
            words += [axis.option, written(value)]
    return words
