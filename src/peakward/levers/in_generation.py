"""A configuration of a decode step as `peakward generate` has it."""

from typing import NamedTuple, get_args

from peakward.levers.axis import TRAINING, Axis, Value, spoken, written
from peakward.levers.decode_step import AXIS as DECODE_STEP
from peakward.levers.registry import BY_NAME, at_work
from peakward.records.case import (
    Configuration,
    DecodeStep,
    DeviceType,
    GenerationCache,
    GenerationPrecision,
    StoredWeights,
)

OPTIONS: dict[str, tuple[Value, ...]] = {
    "precision": get_args(GenerationPrecision),
    "weights": get_args(StoredWeights),
    "kv_cache": get_args(GenerationCache),
    "decode_step": get_args(DecodeStep),
}
"""The axes that have an option there, and its values."""
ALWAYS: dict[DeviceType, dict[str, Value]] = {
    "cpu": {"attention": "sdpa"},
    "cuda": {"attention": "flash-decode", "cuda_graphs": True},
}
"""Settings that every generation has on such a device."""
REPLACED = frozenset(BY_NAME[name].part for name in DECODE_STEP.replaces)
"""Parts that the fused step takes the place of, whatever implements them."""


class InGeneration(NamedTuple):
    """A configuration in words of the command."""

    words: tuple[str, ...]
    left: tuple[str, ...]
    """The settings that it has no option for: "rope fused"."""


def in_generation(configuration: Configuration, device: DeviceType) -> InGeneration:
    """The options that make each step of a generation as the configuration has it."""
    values = {name: BY_NAME[name].value(configuration) for name in OPTIONS}
    words = tuple(
        word
        for name, value in values.items()
        if value in OPTIONS[name] and _is_told(name, value)
        for word in (BY_NAME[name].option, written(value))
    )
    left = (
        spoken(axis.name, value)
        for axis, value in at_work(configuration)
        if not _has(axis, value, configuration, device)
    )
    return InGeneration(words, tuple(left))


def _is_told(name: str, value: Value) -> bool:
    """Left alone, precision and step are chosen by the device."""
    return name in ("precision", "decode_step") or value != BY_NAME[name].default


def _has(axis: Axis, value: Value, configuration: Configuration, device: DeviceType) -> bool:
    """Whether the steps of a generation can be as the setting says, or no step of decode is changed by it."""
    if axis.name in OPTIONS:
        return value in OPTIONS[axis.name]
    if value == ALWAYS[device].get(axis.name):
        return True
    if axis.part in REPLACED and DECODE_STEP.value(configuration) == "fused":
        return True
    if axis.name == "compile_scope":
        return configuration.compile == "none"
    return bool(axis.levers) and all(set(each.passes) <= set(TRAINING) for each in axis.levers)
