"""A case to the command line that measures exactly it."""

import shlex

import msgspec

from peakward.catalogue import models
from peakward.cli.options import SHAPE_BOUNDS
from peakward.cli.values import GIB
from peakward.records.case import Case, Configuration, ModelCase, Workload
from peakward.records.model_shape import ModelShape


def to_command(case: Case) -> str | None:
    """The `peakward bench` line whose one case equals `case`; None where no options say it.

    Operators, live steps, batches of varying length and shapes that differ from a preset in more
    than its sizes have none: their study, or Python, reproduces them.
    """
    if not isinstance(case, ModelCase):
        return None
    model_words = _model_words(case.model)
    if model_words is None or case.workload.varying_seq_lens or case.workload.padding != "none":
        return None
    words = ["peakward", "bench", *model_words, *_workload_words(case.workload)]
    words += _configuration_words(case.configuration)
    if case.memory_limit_bytes is not None:
        words += ["--memory-limit", repr(case.memory_limit_bytes / GIB)]
    return shlex.join([*words, "--device", case.device])


def _model_words(shape: ModelShape) -> list[str] | None:
    """A preset's name and the sizes that differ from it, or None for another architecture."""
    base = shape.name.partition(":")[0]
    preset = next((each for each in models.MODELS if each.name == base), None)
    sizes = {part: getattr(shape, part) for part in SHAPE_BOUNDS}
    if preset is None:
        return None
    if msgspec.structs.replace(
        preset, **sizes, name=shape.name, head_dim=shape.head_dim
    ) != shape or (shape.head_dim not in (preset.head_dim, shape.d_model // shape.n_heads)):
        return None
    words = ["--model", base]
    for part, size in sizes.items():
        # The option's default for --n-kv-heads follows --n-heads, so the two go together.
        follows = part == "n_kv_heads" and shape.n_heads != preset.n_heads
        if size != getattr(preset, part) or follows:
            words += ["--" + part.replace("_", "-"), str(size)]
    return words


def _workload_words(workload: Workload) -> list[str]:
    words = ["--batch-size", str(workload.batch_size), "--seq-len", str(workload.seq_len)]
    words += ["--pass", workload.pass_]
    if workload.accumulate != 1:
        words += ["--accumulate", str(workload.accumulate)]
    if workload.seed != 0:
        words += ["--seed", str(workload.seed)]
    return words


def _configuration_words(configuration: Configuration) -> list[str]:
    words = []
    for field in Configuration.__struct_fields__:
        value = getattr(configuration, field)
        if value != getattr(Configuration(), field):
            text = ("on" if value else "off") if isinstance(value, bool) else value
            words += ["--" + field.replace("_", "-"), text]
    return words
