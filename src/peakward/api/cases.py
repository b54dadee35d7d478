"""Cases from Python: what is run, checked once. The command line reads its options into the same calls."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from peakward.api.machine import this_machine
from peakward.levers import catalogue
from peakward.levers.registry import AXES
from peakward.models import presets
from peakward.models.hugging_face import files
from peakward.models.hugging_face.shape import dropped, shape_of
from peakward.records import check
from peakward.records.case import (
    AS_WRITTEN,
    Configuration,
    ConfiguredCase,
    DeviceType,
    ModelCase,
    ModuleCase,
    ModulePass,
    Pass,
    Workload,
)
from peakward.records.codec import as_read_back
from peakward.records.errors import PeakwardError, quoted
from peakward.records.lever import Lever
from peakward.records.measurement import Protocol
from peakward.records.model_shape import ModelShape

SOURCE_KINDS = ("py:", "hf:")
MAX_BATCH_SIZE = 65_536
MAX_SEQ_LEN = 2**20
MAX_ACCUMULATE = 4096
MAX_SEED = 2**31 - 1
MAX_STEPS = 100_000
_SHORT = {
    "n_layers": "L",
    "d_model": "d",
    "d_ff": "ff",
    "n_experts": "e",
    "n_active_experts": "a",
    "n_heads": "h",
    "n_kv_heads": "kv",
}
"""In the name of a custom shape, which stands in tables: "tiny:L1-d32" is tiny but for these."""
SHAPE_BOUNDS = {part: presets.LARGEST[part] for part in _SHORT}
"""Largest accepted value of each part of a custom shape."""
OPTION_OF = {axis.name: axis.option for axis in AXES if axis.is_option}
"""The option of each axis of levers."""
_TYPES = get_type_hints(Configuration)
CHOICES: dict[str, tuple[str, ...]] = {
    axis.name: get_args(_TYPES[axis.name]) if axis.is_field else tuple(map(str, axis.values))
    for axis in AXES
    if not isinstance(axis.default, bool) and axis.is_option
}
"""The values of each axis that is not on or off."""


def case(
    shape: str | ModelShape,
    *,
    batch_size: int,
    seq_len: int,
    pass_: Pass = "train_step",
    levers: Iterable[str] = (),
    accumulate: int = 1,
    memory_limit_bytes: int | None = None,
    device: DeviceType | None = None,
) -> ModelCase:
    """A pass of a model, with levers resolved into its configuration.

    Args:
        shape: a name that `model` knows, or a shape of your own.
        levers: names such as "bf16-mixed", or field=value settings such as "compile_scope=model".
        device: by default cuda where there is one.

    Raises:
        PeakwardError: as on the command line: an unknown name, two levers that set one field
            differently, or a shape, workload or memory limit that cannot be.
    """
    found = model_shape(shape)
    sizes = _sizes(batch_size, seq_len, accumulate)
    check_length(found, sizes["seq_len"])
    check.one_of(pass_, get_args(Pass), "a pass")
    named = check.texts(levers, "levers", "levers")
    return ModelCase(
        model=found,
        workload=Workload(**sizes, pass_=pass_),
        configuration=catalogue.with_settings(Configuration(), settings(named, "levers")),
        device=_device(device),
        memory_limit_bytes=_memory_limit(memory_limit_bytes),
    )


def module_case(
    source: str,
    *,
    batch_size: int,
    seq_len: int,
    pass_: ModulePass = "train_step",
    levers: Iterable[str] = (),
    memory_limit_bytes: int | None = None,
    device: DeviceType | None = None,
) -> ModuleCase:
    """A pass of a module of yours, which a worker process builds from its source.

    Args:
        source: "py:package.module:factory", importable from the working directory; or "hf:" and a
            configuration of transformers: a file, its folder, or "org/name" in the local cache.
        levers, memory_limit_bytes, device: as of `case`.

    Raises:
        PeakwardError: as `case`; or no such configuration. What is wrong with the module itself is
            told by what runs it.
    """
    if not is_source(check.line(source, "source")):
        raise PeakwardError(
            f"expected the source of a module, py: or hf:, got {quoted(source)}: of a shape make a `case`"
        )
    sizes = _sizes(batch_size, seq_len)
    check.one_of(pass_, get_args(Pass), "a pass")
    named = check.texts(levers, "levers", "levers")
    return case_of_source(
        source,
        Workload(**sizes, pass_=pass_),
        configuration=catalogue.with_settings(AS_WRITTEN, settings(named, "levers")),
        device=_device(device),
        memory_limit_bytes=_memory_limit(memory_limit_bytes),
    )


def model(name: str) -> ModelShape:
    """The shape of a preset, or of the model that a Hugging Face configuration describes.

    No network is touched, and none of Hugging Face's packages is needed.

    Args:
        name: a preset's, as "llama-3-8b"; else a `config.json` or the folder that holds one; else
            "org/name" of a model whose configuration is in the Hugging Face cache. The shape is
            named after the preset, the folder, or "org/name".

    Raises:
        PeakwardError: none of these, a file that is no configuration, or an architecture that no
            shape expresses; or a module's source, which has no shape.
    """
    expect_shape(check.text(name, "a model's name"))
    path = _configuration_of(name)
    if path is None:
        return presets.model(name)
    return _read(path, _name_of(path.parent) if files.exists(Path(name)) else name)


def left_out(name: str) -> str | None:
    """A note on what the named model's configuration says and its shape does not hold, or None.

    Raises:
        PeakwardError: as `model`.
    """
    path = None if is_source(name) else _configuration_of(name)
    share = 0.0 if path is None else dropped(files.configuration(path))
    if not share:
        return None
    return (
        f"The configuration drops {share:.0%} in training, which no shape holds: this plan is without "
        f"dropout. `--model hf:{name}` plans it with dropout."
    )


def with_own_weights(name: str | None) -> str | None:
    """The model's name where weights lie beside its configuration, else None.

    Raises:
        PeakwardError: as `model`, or weights that are damaged or lie elsewhere.
    """
    path = None if name is None or is_source(name) else _configuration_of(name)
    return name if path is not None and files.weights(path) else None


def _configuration_of(name: str) -> Path | None:
    """The file of a Hugging Face configuration; None for a preset's name."""
    if any(preset.name == name for preset in presets.MODELS):
        return None
    if files.exists(Path(name)):
        return files.found(name)
    return files.cached(name) if "/" in name else None


def lever(name: str) -> Lever:
    """The lever of that name.

    Raises:
        PeakwardError: no such lever; names the nearest ones.
    """
    return catalogue.lever(check.line(name, "a lever's name"))


def model_shape(given: str | ModelShape) -> ModelShape:
    """The shape that a name means, or one that the caller assembled, checked."""
    if isinstance(given, str):
        return model(given)
    found = check.record(given, ModelShape, "a model", 'name one, as "tiny", or give a ModelShape')
    presets.validate(found)
    return found


def checked(given: ConfiguredCase) -> ConfiguredCase:
    """A case that the caller may have assembled, held to its types and to sizes that can be.

    Raises:
        PeakwardError: no case, or one that cannot be.
    """
    if not isinstance(given, ModelCase | ModuleCase):
        raise PeakwardError(
            f"expected a case, got {quoted(given)}: make one with `pw.case` or `pw.module_case`"
        )
    found: ConfiguredCase = as_read_back(given)
    work = found.workload
    _sizes(work.batch_size, work.seq_len, work.accumulate)
    check.whole(work.seed, "seed", low=0, high=MAX_SEED)
    for length in work.varying_seq_lens:
        check.whole(length, "varying_seq_lens", low=1, high=work.seq_len)
    if isinstance(found, ModelCase):
        presets.validate(found.model)
        check_length(found.model, work.seq_len)
    if found.memory_limit_bytes is not None:
        check.whole(found.memory_limit_bytes, "memory_limit_bytes", low=1, high=2**50)
    return found


def checked_model_case(given: ModelCase) -> ModelCase:
    """`checked`, of the pass of a shape."""
    found = checked(given)
    if not isinstance(found, ModelCase):
        raise PeakwardError(
            f"expected the case of a shape, got that of the module {found.source}: make one with `pw.case`"
        )
    return found


def checked_protocol(given: Protocol) -> Protocol:
    """A protocol by which something can be measured.

    Raises:
        PeakwardError: none, or one whose numbers contradict what they count.
    """
    found = check.record(given, Protocol, "a protocol", "make one with `pw.Protocol`")
    check.whole(found.min_steps, "min_steps", low=1, high=MAX_STEPS)
    check.whole(found.max_steps, "max_steps", low=found.min_steps, high=MAX_STEPS)
    if found.warmup_steps is not None:
        check.whole(found.warmup_steps, "warmup_steps", low=0, high=MAX_STEPS)
    check.rate(found.timeout_s, "timeout_s")
    for name in ("max_timed_s", "relative_half_width"):
        check.number(getattr(found, name), name, "a number of at least 0", low=0.0, high=1e9)
    return found


def custom(preset: ModelShape, sizes: Mapping[str, int]) -> ModelShape:
    """The preset with the given sizes replaced, named after both.

    Raises:
        PeakwardError: a shape that no model can have.
    """
    if not sizes:
        return preset
    parts: dict[str, int] = {part: getattr(preset, part) for part in SHAPE_BOUNDS} | dict(sizes)
    if "n_heads" in sizes and "n_kv_heads" not in sizes and preset.n_kv_heads == preset.n_heads:
        parts["n_kv_heads"] = parts["n_heads"]
    if parts["d_model"] % parts["n_heads"]:
        raise PeakwardError(
            f"expected heads that divide d_model, got {parts['n_heads']} heads "
            f"and d_model {parts['d_model']}: change --n-heads or --d-model"
        )
    differing = {name: size for name, size in parts.items() if size != getattr(preset, name)}
    if not differing:
        return preset
    if not {"d_model", "n_heads"}.isdisjoint(differing):
        parts["head_dim"] = parts["d_model"] // parts["n_heads"]
    said = "-".join(f"{_SHORT[name]}{size}" for name, size in differing.items())
    shape: ModelShape = msgspec.structs.replace(preset, name=f"{preset.name}:{said}", **parts)
    presets.validate(shape)
    return shape


def check_length(shape: ModelShape, seq_len: int) -> None:
    """Refuse a sequence that the model does not accept."""
    if seq_len > shape.max_seq_len:
        raise PeakwardError(
            f"expected --seq-len of at most {shape.max_seq_len:,} for the model {shape.name}, got {seq_len:,}"
        )


def is_source(name: str) -> bool:
    """Whether the name is a module's source: py:package.module:factory, or hf: and a configuration."""
    return name.startswith(SOURCE_KINDS)


def expect_shape(name: str) -> None:
    """Refuse a source where a shape is needed.

    Raises:
        PeakwardError: it is one.
    """
    if is_source(name):
        raise PeakwardError(
            f"expected the shape of a model, got the module {name}: `peakward run` and `peakward bench` "
            "measure modules, `pw.module_case` names them, `pw.predict(module, device)` predicts them"
        )


def case_of_source(
    source: str,
    workload: Workload,
    *,
    configuration: Configuration = AS_WRITTEN,
    device: DeviceType,
    memory_limit_bytes: int | None = None,
) -> ModuleCase:
    """A pass of the module, as its source is now. Nothing is imported or run.

    Raises:
        PeakwardError: its configuration or transformers is not here, its file is no Python, or its name
            cannot be shown.
    """
    from peakward.lab.models.module_source import fingerprint

    if not source.isprintable():
        raise PeakwardError(
            f"expected a module's source that can stand in tables, got {source!r}: rename what it names"
        )
    return ModuleCase(
        source=source,
        fingerprint=fingerprint(source),
        workload=workload,
        configuration=configuration,
        device=device,
        memory_limit_bytes=memory_limit_bytes,
    )


def settings(names: Iterable[str], option: str) -> dict[str, Any]:
    """Fields of a `Configuration` from names of levers and field=value settings.

    Raises:
        PeakwardError: neither a lever nor a field, not a value of it, or one field set twice.
    """
    made: dict[str, Any] = {}
    for name in names:
        merge(made, _setting(name, option), name)
    return made


def merge(made: dict[str, Any], more: Mapping[str, Any], said_by: str) -> None:
    """Set more fields, none of them twice to different values."""
    for field, value in more.items():
        if made.get(field, value) != value:
            raise PeakwardError(
                f"expected one {field}, got {made[field]!r} and {value!r} from {said_by}: drop one of them"
            )
        made[field] = value


def field_value(field: str, text: str) -> str | bool:
    """The value of a configuration's field that a text names."""
    option = OPTION_OF[field]
    if field in CHOICES:
        return check.one_of(text, CHOICES[field], f"a value of {option}")
    if text not in ("on", "off"):
        raise PeakwardError(f"expected on or off for {option}, got {quoted(text)}")
    return text == "on"


def levers_named(names: Iterable[str]) -> tuple[Lever, ...]:
    """The levers of these names, each once."""
    return tuple(catalogue.lever(name) for name in dict.fromkeys(names))


def _setting(item: str, option: str) -> dict[str, Any]:
    field, equals, value = item.partition("=")
    if not equals:
        return dict(catalogue.lever(item).sets)
    name = field.strip().replace("-", "_")
    check.one_of(name, OPTION_OF, f"a setting in {option}")
    return {name: field_value(name, value.strip())}


def _sizes(batch_size: int, seq_len: int, accumulate: int = 1) -> dict[str, Any]:
    """As plain numbers: a record holds no other package's integers."""
    return {
        "batch_size": check.whole(batch_size, "batch_size", low=1, high=MAX_BATCH_SIZE),
        "seq_len": check.whole(seq_len, "seq_len", low=1, high=MAX_SEQ_LEN),
        "accumulate": check.whole(accumulate, "accumulate", low=1, high=MAX_ACCUMULATE),
    }


def _memory_limit(limit_bytes: int | None) -> int | None:
    return None if limit_bytes is None else check.memory_bytes(limit_bytes, "memory_limit_bytes")


def _device(given: DeviceType | None) -> DeviceType:
    if given is None:
        return this_machine(None).device
    check.one_of(given, get_args(DeviceType), "a device")
    return given


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
