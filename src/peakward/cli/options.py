"""The shared options to cases: the one place where what a user asked for is checked."""

from collections.abc import Iterable
from itertools import product
from typing import Any, get_args, get_type_hints

import msgspec

from peakward.cli import model_names, values
from peakward.cli.module_names import expect_shape, is_source, module_case
from peakward.cli.vocabulary import ShapeOptions, WorkOptions
from peakward.levers import catalogue as lever_catalogue
from peakward.levers.registry import AXES
from peakward.models import presets
from peakward.records.case import (
    AS_WRITTEN,
    Configuration,
    ConfiguredCase,
    DeviceType,
    ModelCase,
    ModuleCase,
    Pass,
    Workload,
)
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.model_shape import ModelShape

MAX_CASES = 10_000
MAX_BATCH_SIZE = 65_536
MAX_SEQ_LEN = 2**20
MAX_ACCUMULATE = 4096
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


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What runs where nothing was asked for."""

    model: str
    batch_size: str
    seq_len: str


DEFAULTS: dict[DeviceType, Defaults] = {
    "cpu": Defaults(model="tiny", batch_size="2", seq_len="128"),
    "cuda": Defaults(model="small", batch_size="4", seq_len="512"),
}

_OPTIONS = {axis.name: axis.option for axis in AXES}
_TYPES = get_type_hints(Configuration)
_CHOICES: dict[str, tuple[str, ...]] = {
    axis.name: get_args(_TYPES[axis.name]) if axis.is_field else tuple(map(str, axis.values))
    for axis in AXES
    if not isinstance(axis.default, bool)
}
"""The values of each axis that is not on or off."""


def cases(
    options: WorkOptions, device: DeviceType, *, start: dict[str, Any] | None = None
) -> tuple[ConfiguredCase, ...]:
    """The grid that the options span, model outermost; `start` holds settings made elsewhere.

    Raises:
        PeakwardError: a value that is not one, a shape that cannot be, a sequence longer than the
            model accepts, a setting made twice with different values, or too large a grid.
    """
    limit = options.memory_limit
    limits: list[int] | list[None] = [None] if limit is None else memory_limits(limit)
    grid = product(
        _names(options, DEFAULTS[device].model),
        _workloads(options, DEFAULTS[device]),
        _settings(options, start or {}),
        limits,
    )
    planned: list[ConfiguredCase] = []
    for name, workload, settings_, limit_bytes in grid:
        if len(planned) == MAX_CASES:
            raise PeakwardError(f"expected at most {MAX_CASES:,} cases, got more: shorten a list")
        make = _module_case if is_source(name) else _model_case
        planned.append(make(name, options, workload, settings_, (device, limit_bytes)))
    return tuple(planned)


def _model_case(
    name: str,
    options: WorkOptions,
    workload: Workload,
    settings_: dict[str, Any],
    where: tuple[DeviceType, int | None],
) -> ModelCase:
    shape = _custom(model_names.model(name), options)
    check_length(shape, workload.seq_len)
    return ModelCase(
        model=shape,
        workload=workload,
        configuration=lever_catalogue.with_settings(Configuration(), settings_),
        device=where[0],
        memory_limit_bytes=where[1],
    )


def _module_case(
    name: str,
    options: WorkOptions,
    workload: Workload,
    settings_: dict[str, Any],
    where: tuple[DeviceType, int | None],
) -> ModuleCase:
    for part in SHAPE_BOUNDS:
        if getattr(options, part) is not None:
            raise PeakwardError(
                f"expected no --{part.replace('_', '-')} with the module {name}, got one: its sizes are its "
                "own"
            )
    configuration = lever_catalogue.with_settings(AS_WRITTEN, settings_)
    return module_case(
        name,
        workload,
        configuration=configuration,
        device=where[0],
        memory_limit_bytes=where[1],
    )


def single(options: WorkOptions, device: DeviceType, start: dict[str, Any]) -> ConfiguredCase:
    """The one case of a command that takes no grid."""
    found = cases(options, device, start=start)
    if len(found) > 1:
        raise PeakwardError(
            f"expected one case, got a grid of {len(found)}: name one value an option here, "
            "or measure the grid with `peakward bench`"
        )
    return found[0]


def single_shape(options: WorkOptions, device: DeviceType, start: dict[str, Any]) -> ModelCase:
    """The one case, of a shape, of a command that takes no grid and no modules."""
    for name in _names(options, DEFAULTS[device].model):
        expect_shape(name)
    found = single(options, device, start)
    assert isinstance(found, ModelCase)
    return found


def without_twins(planned: Iterable[ConfiguredCase]) -> tuple[ConfiguredCase, ...]:
    """The cases less those that run as an earlier one does: where nothing is compiled, its scope
    changes nothing."""
    kept: dict[ConfiguredCase, ConfiguredCase] = {}
    for case in planned:
        configuration = case.configuration
        if configuration.compile == "none":
            configuration = msgspec.structs.replace(configuration, compile_scope="block")
        kept.setdefault(msgspec.structs.replace(case, configuration=configuration), case)
    return tuple(kept.values())


def shapes(options: ShapeOptions, default: str) -> tuple[ModelShape, ...]:
    """The named models, with the parts of the shape that the options override."""
    return tuple(_custom(model_names.model(name), options) for name in _names(options, default))


def _names(options: ShapeOptions, default: str) -> tuple[str, ...]:
    return values.split(default if options.model is None else options.model, "--model")


def settings(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Fields of a `Configuration` from comma lists of lever names and field=value settings.

    Raises:
        PeakwardError: neither a lever nor a field, not a value of it, or one field set twice.
    """
    made: dict[str, Any] = {}
    for item in [item for text in texts for item in values.split(text, option)]:
        _merge(made, _setting(item, option), item)
    return made


def levers(texts: Iterable[str]) -> tuple[Lever, ...]:
    """The levers named in comma lists, each once."""
    names = dict.fromkeys(name for text in texts for name in values.split(text, "--lever"))
    return tuple(lever_catalogue.lever(name) for name in names)


def _setting(item: str, option: str) -> dict[str, Any]:
    field, equals, value = item.partition("=")
    if not equals:
        return dict(lever_catalogue.lever(item).sets)
    name = field.strip().replace("-", "_")
    values.one_of(name, tuple(_OPTIONS), f"a setting in {option}")
    return {name: _value(name, value.strip())}


def _merge(made: dict[str, Any], more: dict[str, Any], said_by: str) -> None:
    for field, value in more.items():
        if made.get(field, value) != value:
            raise PeakwardError(
                f"expected one {field}, got {made[field]!r} and {value!r} from {said_by}: drop one of them"
            )
        made[field] = value


def _value(field: str, text: str) -> str | bool:
    option = _OPTIONS[field]
    if field not in _CHOICES:
        return values.on_off(text, option)
    return values.one_of(text, _CHOICES[field], f"a value of {option}")


def _settings(options: WorkOptions, start: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each configuration, the fields that are not as the baseline has them."""
    axes: list[list[tuple[str, Any]]] = []
    for field, option in _OPTIONS.items():
        text = getattr(options, field)
        if text is None:
            continue
        axes.append([(field, _value(field, item)) for item in values.split(text, option)])
    made = []
    for choice in product(*axes):
        fields = dict(start)
        for field, value in choice:
            _merge(fields, {field: value}, _OPTIONS[field])
        made.append(fields)
    return made


def _workloads(options: WorkOptions, defaults: Defaults) -> list[Workload]:
    batches = defaults.batch_size if options.batch_size is None else options.batch_size
    lengths = defaults.seq_len if options.seq_len is None else options.seq_len
    passes: list[Pass] = [
        values.one_of(name, get_args(Pass), "a pass")  # type: ignore[misc]
        for name in values.split(options.pass_, "--pass")
    ]
    seed = values.whole(options.seed, "--seed", low=0, high=2**31 - 1)
    return [
        Workload(batch_size=batch, seq_len=length, pass_=pass_, accumulate=accumulate, seed=seed)
        for pass_, length, batch, accumulate in product(
            passes,
            sizes(lengths, "--seq-len", MAX_SEQ_LEN),
            sizes(batches, "--batch-size", MAX_BATCH_SIZE),
            sizes(options.accumulate, "--accumulate", MAX_ACCUMULATE),
        )
    ]


def sizes(text: str, option: str, high: int) -> list[int]:
    """Positive whole numbers from a comma list."""
    return [values.whole(item, option, low=1, high=high) for item in values.split(text, option)]


def memory_limits(text: str) -> list[int]:
    """Bytes from a comma list in GiB."""
    return [
        values.memory_bytes(item, "--memory-limit") for item in values.split(text, "--memory-limit")
    ]


def check_length(shape: ModelShape, seq_len: int) -> None:
    """Refuse a sequence that the model does not accept."""
    if seq_len > shape.max_seq_len:
        raise PeakwardError(
            f"expected --seq-len of at most {shape.max_seq_len:,} for the model {shape.name}, got {seq_len:,}"
        )


def _custom(preset: ModelShape, options: ShapeOptions) -> ModelShape:
    """The preset with the given parts replaced, named after both."""
    given = {
        part: values.whole(text, "--" + part.replace("_", "-"), low=1, high=high)
        for part, high in SHAPE_BOUNDS.items()
        if (text := getattr(options, part)) is not None
    }
    if not given:
        return preset
    parts = {part: getattr(preset, part) for part in SHAPE_BOUNDS} | given
    if "n_heads" in given and "n_kv_heads" not in given and preset.n_kv_heads == preset.n_heads:
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
