"""The part of `peakward plan` about serving: prompts that are prefilled, then tokens decoded."""

from collections.abc import Sequence
from typing import Annotated, TypeVar, cast, get_args

import msgspec
from tyro.conf import OmitArgPrefixes

from peakward.cli import model_names, options, values
from peakward.cli.vocabulary import WorkOptions, option
from peakward.levers.registry import AXES
from peakward.prediction.planning.serving import serving_plan
from peakward.prediction.planning.site import Site
from peakward.records.errors import PeakwardError
from peakward.records.inference import (
    CacheType,
    ComputeType,
    ServingWorkload,
    Speculation,
    WeightFormat,
    WeightType,
)
from peakward.records.serving_plan import ServingPlan

T = TypeVar("T")

DEFAULT_MODEL, DEFAULT_BATCH_SIZE, DEFAULT_PROMPT_LEN = "llama-3-8b", "1", "512"
MAX_GROUP = 65_536
MAX_DRAFT = 1024
OF_STEPS_ALONE = (
    *("pass_", "accumulate"),
    *(axis.name for axis in AXES if axis.name not in ("precision", "weights")),
)
"""Options that say how a step is carried out, of which a floor knows nothing."""


class ServingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Serving in place of a pass: floors of prefill and decode."""

    output_len: Annotated[str | None, option("N", "none: a pass is planned")] = None
    """Serve: `--batch-size` prompts of `--seq-len` tokens, then this many tokens for each."""
    cache: Annotated[str | None, option("TYPE", "bf16")] = None
    """How keys and values are stored: fp32, bf16, fp16, fp8, int8."""
    draft: Annotated[str | None, option("NAME", "none")] = None
    """Speculate with this model as the draft."""
    draft_len: Annotated[str | None, option("N", "4")] = None
    """Tokens that the draft proposes in a round."""
    acceptance: Annotated[str | None, option("SHARE", "0.7")] = None
    """Share of proposed tokens that the model accepts."""


Serving = OmitArgPrefixes[ServingOptions]


def planned(
    work: WorkOptions, serving: ServingOptions, sites: Sequence[Site], *, command: str
) -> ServingPlan:
    """The workload that the options mean, on each device.

    Raises:
        PeakwardError: a value that is not one, an option of steps alone, or a workload that the model
            cannot serve.
    """
    assert serving.output_len is not None
    _refuse_steps(work)
    (shape,) = _one(options.shapes(work, DEFAULT_MODEL), "--model")
    (batch_size,) = _one(
        options.sizes(
            work.batch_size or DEFAULT_BATCH_SIZE, "--batch-size", options.MAX_BATCH_SIZE
        ),
        "--batch-size",
    )
    (prompt_len,) = _one(
        options.sizes(work.seq_len or DEFAULT_PROMPT_LEN, "--seq-len", options.MAX_SEQ_LEN),
        "--seq-len",
    )
    compute = cast(
        ComputeType,
        values.one_of(work.precision or "bf16", get_args(ComputeType), "a type to serve in"),
    )
    workload = ServingWorkload(
        batch_size=batch_size,
        prompt_len=prompt_len,
        output_len=values.whole(
            serving.output_len, "--output-len", low=2, high=options.MAX_SEQ_LEN
        ),
        weights=_weights(work.weights, compute),
        cache_type=cast(
            CacheType,
            values.one_of(serving.cache or "bf16", get_args(CacheType), "a value of --cache"),
        ),
        compute_type=compute,
        speculation=_speculation(serving),
    )
    limits = [None] if work.memory_limit is None else options.memory_limits(work.memory_limit)
    (limit_bytes,) = _one(limits, "--memory-limit")
    return serving_plan(shape, workload, sites, limit_bytes=limit_bytes, command=command)


def refuse_without_output(serving: ServingOptions) -> None:
    """Options of serving mean nothing where nothing is served."""
    for field in serving.__struct_fields__:
        if getattr(serving, field) is not None:
            name = "--" + field.replace("_", "-")
            raise PeakwardError(
                f"expected --output-len beside {name}, got none: it says how many tokens are served"
            )


def _refuse_steps(work: WorkOptions) -> None:
    for field in OF_STEPS_ALONE:
        given, plain = getattr(work, field), getattr(WorkOptions(), field)
        if given != plain:
            raise PeakwardError(
                f"expected no --{field.strip('_').replace('_', '-')} beside --output-len, got {given}: "
                "floors of serving do not depend on it"
            )


def _weights(text: str | None, compute: ComputeType) -> WeightFormat:
    if text is None:
        return WeightFormat(type="fp32" if compute == "tf32" else compute)
    kind, colon, group = text.partition(":")
    values.one_of(kind, get_args(WeightType), "a value of --weights")
    size = values.whole(group, "--weights TYPE:GROUP", low=1, high=MAX_GROUP) if colon else None
    return WeightFormat(type=cast(WeightType, kind), group_size=size)


def _speculation(serving: ServingOptions) -> Speculation | None:
    if serving.draft is None:
        for field in ("draft_len", "acceptance"):
            if getattr(serving, field) is not None:
                raise PeakwardError(
                    f"expected --draft beside --{field.replace('_', '-')}, got none: name the model "
                    "that proposes tokens"
                )
        return None
    return Speculation(
        draft=model_names.model(serving.draft),
        draft_len=values.whole(serving.draft_len or "4", "--draft-len", low=1, high=MAX_DRAFT),
        acceptance_rate=values.share(serving.acceptance or "0.7", "--acceptance"),
    )


def _one(found: Sequence[T], name: str) -> Sequence[T]:
    if len(found) != 1:
        raise PeakwardError(
            f"expected one value of {name} to serve with, got {len(found)}: name one"
        )
    return found
