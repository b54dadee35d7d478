"""A case to the command line that measures exactly it."""

import shlex

from peakward.api.cases import SHAPE_BOUNDS, custom, is_source, model
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
from peakward.records.check import GIB
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape


def to_command(case: Case, said: str | None = None) -> str | None:
    """The `peakward bench` line whose one case equals `case`; None where no options say it.

    Operators, pieces of code, live steps and modules, batches of varying length or of text, and shapes
    that differ from a named model in more than its sizes, or whose names do not say so, have none: their
    study, or Python, reproduces them.

    Args:
        said: what `--model` said where the case was made. A shape from a file needs it: its name
            is the folder's, and does not say where that is.
    """
    if isinstance(case, ModuleCase):
        return _module_command(case)
    if not isinstance(case, ModelCase):
        return None
    known_as = (case.model.name.partition(":")[0], *(() if said is None else (said,)))
    names = [
        name for name in known_as if name != "None"
    ]  # As a value tyro reads that as none given.
    model_words = next(filter(None, (_model_words(case.model, name) for name in names)), None)
    work = case.workload
    if model_words is None or work.varying_seq_lens or work.padding != "none" or work.data:
        return None
    return _command(case, model_words, Configuration())


def command_of(case: Case) -> str:
    """For the record: the line that measures the case, or why there is none."""
    return to_command(case) or "# from Python: no option of the command line says this case"


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
        part: getattr(shape, part)
        for part in SHAPE_BOUNDS
        if getattr(shape, part) != getattr(preset, part)
        # The option's default for --n-kv-heads follows --n-heads, so the two go together.
        or (part == "n_kv_heads" and shape.n_heads != preset.n_heads)
    }
    if _named(name, sizes) != shape:
        return None
    words = ["--model", name]
    for part, size in sizes.items():
        words += ["--" + part.replace("_", "-"), str(size)]
    return words


def _named(name: str, sizes: dict[str, int]) -> ModelShape | None:
    """The one shape that `--model` and the options of its sizes mean."""
    # The parser would take the first for an option, and the others for lists or for what is stripped.
    if name.startswith("-") or "," in name or name != name.strip():
        return None
    try:
        return custom(model(name), sizes)
    except PeakwardError:
        return None


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
