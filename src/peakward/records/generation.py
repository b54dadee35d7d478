"""Text that a model generated: how it was chosen, and how long it took."""

from typing import ClassVar, Literal

import msgspec

from peakward.records import check
from peakward.records.case import (
    DecodeStep,
    DeviceType,
    GenerationCache,
    GenerationPrecision,
    StoredWeights,
)
from peakward.records.case import Source as Text
from peakward.records.measurement import Environment, Interval
from peakward.records.model_shape import ModelShape
from peakward.records.prediction import Source
from peakward.records.result import Result


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen from the logits."""

    temperature: float = 0.0
    """The logits are divided by it; 0 takes the likeliest token."""
    top_k: int | None = None
    """Only that many of the likeliest tokens are chosen from."""
    top_p: float | None = None
    """Only the fewest of the likeliest tokens whose probabilities sum to it are chosen from."""
    seed: int = 0


MOST_TOP_K = 2**24
MOST_SEED = 2**63 - 1
LEAST_SHARE = 1e-9


def checked_sampling(temperature: object, top_k: object, top_p: object, seed: object) -> Sampling:
    """How a user wants tokens to be chosen.

    Raises:
        PeakwardError: a value beyond its limits.
    """
    return Sampling(
        temperature=checked_temperature(temperature, "temperature"),
        top_k=None if top_k is None else check.whole(top_k, "top_k", low=1, high=MOST_TOP_K),
        top_p=None if top_p is None else checked_top_p(top_p, "top_p"),
        seed=check.whole(seed, "seed", low=0, high=MOST_SEED),
    )


def checked_temperature(given: object, name: str) -> float:
    """The number that logits are divided by."""
    return check.number(given, name, "a number from 0 to 100", low=0.0, high=100.0)


def checked_top_p(given: object, name: str) -> float:
    """The share of the probability that tokens are chosen from."""
    return check.number(given, name, "a share above 0, at most 1", low=LEAST_SHARE, high=1.0)


class Continuation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt and the text behind it."""

    prompt: str
    text: str
    n_prompt_tokens: int
    n_new_tokens: int
    """The token that ended the text is one of them."""
    ended: bool
    """Whether the model ended the text itself."""


Batching = Literal["static", "continuous"]
"""Whether a row waits until all of its batch have ended, or takes the next request when its own text has."""
AskedStep = Literal["auto", "fused", "separate"]
"""The step that was asked for; auto: fused where the kernels take the model and what is made of it."""
PRECISION: dict[DeviceType, GenerationPrecision] = {"cpu": "fp32", "cuda": "bf16"}
"""The precision on each kind of device, where no other is asked for."""


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the passes of a generation are carried out, in the words of the axes of levers."""

    precision: GenerationPrecision
    weights: StoredWeights = "dense"
    """The matrices of the blocks."""
    calibration_text: Text | None = None
    """The text that calibrated weights are rounded on; None of others."""
    kv_cache: GenerationCache = "static"
    decode_step: AskedStep = "auto"


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate at which a device reads and writes its memory."""

    bytes_per_s: float
    source: Source


class Generation(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New tokens for one prompt or several at once, timed in two parts after an untimed round of each.

    Prefill takes every prompt to its first new token. Decode makes the others, one a prompt and step.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("continuations",)

    model: str
    shape: ModelShape | None
    """None: transformers computed the model (`computed_by`)."""
    computed_by: str | None = None
    """The class of transformers that made the passes; None: Peakward's own decoder."""
    stored: str
    """How the weights were stored: "safetensors", "Q4_1 and Q8_0"."""
    computed_in: str
    """The precision of the passes: the type of weights that are not quantised, and of a static cache."""
    weights: StoredWeights = "dense"
    """How the matrices of the blocks are stored in memory."""
    calibrated_on: str | None = None
    """The text that calibrated weights were rounded on."""
    kv_cache: GenerationCache = "static"
    environment: Environment
    sampling: Sampling
    continuations: tuple[Continuation, ...]
    prefill_s: float
    time_to_first_token_s: float
    """From text to the first new token of every prompt: prefill, with the splitting of the text into tokens
    before it."""
    decode_s: float
    n_steps: int
    """Steps of decode."""
    decode_step: DecodeStep = "separate"
    """The step that decode ran: five of Peakward's own kernels a layer, or the model's operators."""
    captured: bool | None = None
    """Whether a step is one CUDA graph; a model that asks the host for numbers on its way is none. None on a
    CPU, and in records of before 28 November 2026."""
    not_fused: str | None = None
    """Why the fused step was not taken where nothing else was asked for."""
    guesses: int = 0
    """The tokens that a step guessed and checked, for each prompt; 0: none were guessed."""
    draft: str | None = None
    """The source of guesses: "ngrams" (the text itself), "skip:12-17" (the model without these blocks),
    "distilled:12-17" (with a fitted matrix in their place) or a model."""
    n_guessed: int = 0
    """Guessed tokens that the text had room for, before its end."""
    n_kept: int = 0
    """Guessed tokens that stand in the text: each is a token more than a step makes. The last token of a
    round counts as the model's own, also where it was guessed rightly, as the end of a text may be."""
    tokens_per_s: float | None
    """Tokens that decode made, of all prompts, in a second until the last text had ended; None where it made
    none. A GPU may make steps beyond that: `decode_s` and `n_steps` have them, this rate has not."""
    bytes_per_step: float | None
    """Bytes of weights and cache that a step of decode must read, a draft's weights for each guess
    included: the mean over steps. None where transformers computes experts, of which a token takes some, or
    layers that keep unequally much."""
    bandwidth: Bandwidth | None
    """None where neither a calibration of this machine nor a datasheet of its device is known."""
    bandwidth_share: float | None
    """`bytes_per_step` over the time of a step, as a share of the bandwidth; None where that is not known, or
    no step was made."""
    predicted_step_s: Interval | None = None
    """The time of a step behind the mean of its positions as `peakward plan` predicts it, by the calibration
    or the datasheet that the bandwidth is of, without the choice of a token. None on a CPU, beside guesses,
    of a model that transformers computes, and where a setting is not predicted (`not_predicted`)."""
    not_predicted: str | None = None
    """Why a step on a GPU could not be predicted."""


class Batched(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue of requests, served in one way. All of them are there at the start."""

    batching: Batching
    serve_s: float
    """Until the last text had ended."""
    n_steps: int
    """Steps of decode, each of all rows."""
    row_use: float | None
    """The share of rows' steps that made a token; None where no step was made."""
    tokens_per_s: float
    """Tokens of all texts over `serve_s`."""
    first_token_s: tuple[float, ...]
    """From the start to the first token of each request, in the order of the queue."""
    done_s: tuple[float, ...]
    """From the start to the end of each text."""


class Serving(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of unequal lengths through the rows of one cache, in static batches and continuously."""

    ROWS: ClassVar[tuple[str, ...]] = ("continuations",)

    model: str
    shape: ModelShape | None
    """None: transformers computed the model (`computed_by`)."""
    computed_by: str | None = None
    """The class of transformers that made the passes; None: Peakward's own decoder."""
    stored: str
    """How the weights were stored: "safetensors", "Q4_1 and Q8_0"."""
    computed_in: str
    """See `Generation`, also for the next two."""
    weights: StoredWeights = "dense"
    calibrated_on: str | None = None
    kv_cache: GenerationCache = "static"
    environment: Environment
    sampling: Sampling
    decode_step: DecodeStep = "separate"
    """See `Generation`, also for `not_fused`."""
    not_fused: str | None = None
    rows: int
    """Texts that are made at once."""
    n_pages: int
    page_size: int
    """Tokens of a page of the cache."""
    continuations: tuple[Continuation, ...]
    """The texts of continuous batching."""
    n_equal: int
    """Texts that both ways made alike. In few bits two tokens of nearly equal logits may change places."""
    ways: tuple[Batched, ...]
