"""The shared options to cases: text is read here, once, into the values that `peakward.api` takes."""

from collections.abc import Iterable
from itertools import product
from typing import Any, get_args

import msgspec

from peakward.api.cases import (
    MAX_ACCUMULATE,
    MAX_BATCH_SIZE,
    MAX_SEED,
    MAX_SEQ_LEN,
    OPTION_OF,
    SHAPE_BOUNDS,
    case_of_source,
    check_length,
    custom,
    field_value,
    is_source,
    levers_named,
    merge,
    model,
)
from peakward.api.cases import settings as settings_of
from peakward.cli import parse
from peakward.cli.vocabulary import ShapeOptions, WorkOptions
from peakward.levers.catalogue import with_settings
from peakward.records import check
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


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """The case that runs where nothing was asked for."""

    model: str
    batch_size: str
    seq_len: str


DEFAULTS: dict[DeviceType, Defaults] = {
    "cpu": Defaults(model="tiny", batch_size="2", seq_len="128"),
    "cuda": Defaults(model="small", batch_size="4", seq_len="512"),
}


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
    shape = custom(model(name), _sizes_of(options))
    check_length(shape, workload.seq_len)
    return ModelCase(
        model=shape,
        workload=workload,
        configuration=with_settings(Configuration(), settings_),
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
    configuration = with_settings(AS_WRITTEN, settings_)
    return case_of_source(
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


def only_name(options: WorkOptions) -> str:
    """The model's name, of the one case of a command on CUDA that takes no grid."""
    return _names(options, DEFAULTS["cuda"].model)[0]


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
    return tuple(custom(model(name), _sizes_of(options)) for name in _names(options, default))


def _names(options: ShapeOptions, default: str) -> tuple[str, ...]:
    return parse.split(default if options.model is None else options.model, "--model")


def settings(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Fields of a `Configuration` from comma lists of lever names and field=value settings.

    Raises:
        PeakwardError: neither a lever nor a field, not a value of it, or one field set twice.
    """
    return settings_of((item for text in texts for item in parse.split(text, option)), option)


def levers(texts: Iterable[str]) -> tuple[Lever, ...]:
    """The levers named in comma lists, each once."""
    return levers_named(name for text in texts for name in parse.split(text, "--lever"))


def _settings(options: WorkOptions, start: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the fields of each configuration that differ from the baseline's."""
    axes: list[list[tuple[str, Any]]] = []
    for field, option in OPTION_OF.items():
        text = getattr(options, field)
        if text is None:
            continue
        axes.append([(field, field_value(field, item)) for item in parse.split(text, option)])
    made = []
    for choice in product(*axes):
        fields = dict(start)
        for field, value in choice:
            merge(fields, {field: value}, OPTION_OF[field])
        made.append(fields)
    return made


def _workloads(options: WorkOptions, defaults: Defaults) -> list[Workload]:
    batches = defaults.batch_size if options.batch_size is None else options.batch_size
    lengths = defaults.seq_len if options.seq_len is None else options.seq_len
    passes: list[Pass] = [
        check.one_of(name, get_args(Pass), "a pass")  # type: ignore[misc]
        for name in parse.split(options.pass_, "--pass")
    ]
    seed = parse.whole(options.seed, "--seed", low=0, high=MAX_SEED)
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
    return [parse.whole(item, option, low=1, high=high) for item in parse.split(text, option)]


def memory_limits(text: str) -> list[int]:
    """Bytes from a comma list in GiB."""
    return [
        parse.memory_bytes(item, "--memory-limit") for item in parse.split(text, "--memory-limit")
    ]


def _sizes_of(options: ShapeOptions) -> dict[str, int]:
    """The parts of the shape that the options replace."""
    return {
        part: parse.whole(text, "--" + part.replace("_", "-"), low=1, high=high)
        for part, high in SHAPE_BOUNDS.items()
        if (text := getattr(options, part)) is not None
    }
