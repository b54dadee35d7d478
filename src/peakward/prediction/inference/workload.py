"""The conditions that a serving workload must satisfy to have a cost."""

import itertools
from collections.abc import Iterator

import msgspec

from peakward.models import presets
from peakward.prediction.traffic import QUANTISED_TYPES
from peakward.records.errors import PeakwardError
from peakward.records.inference import ServingWorkload, Speculation, WeightFormat
from peakward.records.model_shape import ModelShape


def validate(shape: ModelShape, workload: ServingWorkload) -> None:
    """Refuse a workload that the shape cannot serve.

    Raises:
        PeakwardError: the first thing wrong with either, and what to do.
    """
    presets.validate(shape)
    try:
        msgspec.convert(msgspec.to_builtins(workload), ServingWorkload)
    except msgspec.ValidationError as error:
        raise PeakwardError(f"expected a serving workload, got one that is not: {error}") from error
    faults = itertools.chain(
        _length_faults(shape, workload),
        _format_faults(workload.weights),
        _speculation_faults(shape, workload),
    )
    if (fault := next(faults, None)) is not None:
        raise PeakwardError(fault)


def _length_faults(shape: ModelShape, workload: ServingWorkload) -> Iterator[str]:
    for field in ("batch_size", "prompt_len"):
        if (size := getattr(workload, field)) < 1:
            yield f"expected {field} of at least 1, got {size}: give a positive size"
    if workload.output_len < 2:
        yield (
            f"expected output_len of at least 2, got {workload.output_len}: the prefill gives the "
            "first token, so that a decode step needs a second"
        )
    yield from _too_long(shape, workload)


def _too_long(shape: ModelShape, workload: ServingWorkload) -> Iterator[str]:
    whole = workload.prompt_len + workload.output_len
    if whole > shape.max_seq_len:
        yield (
            f"expected prompt_len + output_len of at most {shape.max_seq_len:,} for the model "
            f"{shape.name}, got {whole:,}: shorten either, or replace max_seq_len in the shape"
        )


def _format_faults(stored: WeightFormat) -> Iterator[str]:
    if stored.group_size is not None and stored.type not in QUANTISED_TYPES:
        yield (
            f"expected no group_size for {stored.type} weights, got {stored.group_size}: "
            "only quantised weights have scales"
        )
    if stored.group_size is not None and stored.group_size < 1:
        yield f"expected a group_size of at least 1, got {stored.group_size}: 128 is customary"
    if stored.zero_points and stored.type not in ("int8", "int4"):
        yield (
            f"expected no zero_points for {stored.type} weights, got some: "
            "only int8 and int4 have them"
        )


def _speculation_faults(shape: ModelShape, workload: ServingWorkload) -> Iterator[str]:
    speculation: Speculation | None = workload.speculation
    if speculation is None:
        return
    presets.validate(speculation.draft)
    if speculation.draft_len < 1:
        yield (
            f"expected a draft_len of at least 1, got {speculation.draft_len}: "
            "leave speculation out to decode without a draft"
        )
    if not 0 <= speculation.acceptance_rate <= 1:
        yield (
            f"expected an acceptance_rate from 0 to 1, got {speculation.acceptance_rate}: "
            "it is the share of proposed tokens that are accepted"
        )
    if speculation.draft.vocab_size != shape.vocab_size:
        yield (
            f"expected a draft of the target's vocabulary of {shape.vocab_size:,}, got "
            f"{speculation.draft.vocab_size:,}: the target must be able to score its tokens"
        )
    yield from _too_long(speculation.draft, workload)
