"""From prompts to texts: a real model, its words and a cache, timed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from math import ceil
from time import perf_counter
from typing import Any, get_args

import torch
from torch import nn

from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import ModelDraft, NGrams
from peakward.lab.inference.generate import generate
from peakward.lab.inference.named_drafts import draft_of
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.pretrained import AnyModel, AnyPretrained, attention_of, load_any
from peakward.lab.inference.quantised import load_quantised
from peakward.lab.inference.read_bytes import step_bytes
from peakward.lab.inference.sequences import LIMITED, ContiguousCache
from peakward.lab.inference.serving import Request, Served, serve
from peakward.lab.inference.speculation import Speculation
from peakward.lab.models.decoder import Block, Decoder
from peakward.levers.decode_step import model_obstacle
from peakward.levers.precision import fp32_matmuls
from peakward.records.case import DecodeStep, GenerationCache, GenerationPrecision
from peakward.records.errors import PeakwardError, quoted
from peakward.records.generation import (
    AskedStep,
    Batched,
    Batching,
    Continuation,
    Generation,
    GenerationSettings,
    Sampling,
    Serving,
)
from peakward.records.measurement import Environment
from peakward.records.model_shape import ModelShape

TYPES: dict[GenerationPrecision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
}
"""The type of a static cache, and of weights that are not quantised."""
STORED: dict[GenerationCache, torch.dtype | None] = {"static": None, "int8": torch.int8}
"""The type of keys and values where it is not that of weights."""
PAGE_SIZE = 16
WARM_UP_TOKENS = 3
"""Tokens of the round that is not timed: memory is taken, and libraries are set up."""


@contextmanager
def without_autocast() -> Iterator[None]:
    """Turns off what the caller may be inside: passes have the type that the record names."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@without_autocast()
def continued(
    name: str,
    prompts: Sequence[str],
    *,
    by: Sampling,
    max_new_tokens: int,
    guesses: int,
    draft: str,
    asked: GenerationSettings,
    not_fused: Callable[[ModelShape], str | None],
    environment: Environment,
) -> Generation:
    """The texts behind these prompts, without a bandwidth beside their rates.

    Args:
        name: the model, as `pretrained.load` takes it.
        guesses: the tokens that a step guesses and checks; 0 for none.
        draft: what guesses them: as `named_drafts` says. One that is another model has dense weights.
        asked: how all passes are carried out, a draft's too.
        not_fused: why the fused step cannot make these texts of such a model, or None where it can.
        environment: the device and the software that this runs on.

    Raises:
        PeakwardError: what `load_any` and `load_quantised` raise; an empty prompt, or one that is longer than
            the model or the draft takes with its new tokens; a draft that has other tokens or that is not
            there; a fused step that was asked for and cannot be taken.
    """
    device, dtype = environment.device_type, TYPES[asked.precision]
    found = _loaded(name, asked, device)
    step, reason = _step_of(found.model, asked.decode_step, not_fused)
    drafting = draft_of(found, draft, device, dtype) if guesses else None
    warm_up = min(WARM_UP_TOKENS, max_new_tokens)
    ids = _encoded(found, prompts, max_new_tokens, guesses, drafting)
    kept = asked.kv_cache
    how: dict[str, Any] = {"guesses": guesses, "draft": drafting, "step": step, "kept": kept}
    with fp32_matmuls(asked.precision):
        generate(decoding_of(found, ids, by, warm_up, **how), ids)
        began = perf_counter()
        ids = _encoded(found, prompts, max_new_tokens, guesses, drafting)
        encode_s = perf_counter() - began
        made = generate(decoding_of(found, ids, by, max_new_tokens, **how), ids)
    n_decoded = sum(len(new) - 1 for new in made.tokens)
    return Generation(
        model=found.model.shape.name,
        **_of_model(found.model),
        stored=found.stored,
        **_as_asked(asked),
        environment=environment,
        sampling=by,
        continuations=_continuations(found, prompts, ids, made.tokens),
        prefill_s=made.prefill_s,
        time_to_first_token_s=encode_s + made.prefill_s,
        decode_s=made.decode_s,
        n_steps=made.n_steps,
        decode_step=step,
        captured=getattr(found.model, "captured", True) if device == "cuda" else None,
        not_fused=reason,
        guesses=guesses,
        draft=draft if guesses else None,
        n_guessed=made.counts.n_guessed,
        n_kept=made.counts.n_kept,
        tokens_per_s=n_decoded / made.text_s if n_decoded else None,
        bytes_per_step=step_bytes(found.model, made.positions, drafting, guesses, STORED[kept]),
        bandwidth=None,
        bandwidth_share=None,
    )


@without_autocast()
def served(
    name: str,
    prompts: Sequence[str],
    most: Sequence[int],
    *,
    rows: int,
    by: Sampling,
    asked: GenerationSettings,
    not_fused: Callable[[ModelShape], str | None],
    environment: Environment,
) -> Serving:
    """The texts behind these prompts, by static and by continuous batching on one cache in pages.

    Args:
        most: the most new tokens of each.
        rows: the texts that are made at once, at most.
        asked, not_fused: as of `continued`.

    Raises:
        PeakwardError: as `continued`.
    """
    found = _loaded(name, asked, environment.device_type)
    requests = [
        Request(_encoded(found, [prompt], n)[0], n) for prompt, n in zip(prompts, most, strict=True)
    ]
    # A step computes every row, and a row that never has a text has no use.
    rows = min(rows, len(requests))
    longest = max(len(each.ids) + each.max_new_tokens for each in requests)
    step, reason = _step_of(found.model, asked.decode_step, not_fused)

    def run(those: Sequence[Request], batching: Batching) -> Served:
        cache = _pages(found.model, rows, longest, asked.kv_cache)
        most_new_tokens = max(each.max_new_tokens for each in those)
        of_text = {"by": by, "most_new_tokens": most_new_tokens, "ends": found.ends}
        return serve(loop_of(found.model, cache, step, **of_text), those, batching)

    short = [
        Request(each.ids, min(each.max_new_tokens, WARM_UP_TOKENS)) for each in requests[:rows]
    ]
    with fp32_matmuls(asked.precision):
        run(short, "static")
        made: dict[Batching, Served] = {each: run(requests, each) for each in get_args(Batching)}
    texts = made["continuous"].tokens
    return Serving(
        model=found.model.shape.name,
        **_of_model(found.model),
        stored=found.stored,
        **_as_asked(asked),
        environment=environment,
        sampling=by,
        decode_step=step,
        not_fused=reason,
        rows=rows,
        n_pages=rows * ceil(longest / PAGE_SIZE),
        page_size=PAGE_SIZE,
        continuations=_continuations(found, prompts, [each.ids for each in requests], texts),
        n_equal=sum(a == b for a, b in zip(texts, made["static"].tokens, strict=True)),
        ways=tuple(_batched(batching, each) for batching, each in made.items()),
    )


def _pages(model: AnyModel, rows: int, longest: int, kept: GenerationCache) -> PagedCache:
    """Pages for as many rows of the longest text."""
    weights = model.embedding.weight
    return PagedCache(
        model.shape,
        n_rows=rows,
        n_pages=rows * ceil(longest / PAGE_SIZE),
        page_size=PAGE_SIZE,
        longest=longest,
        device=str(weights.device),
        dtype=weights.dtype,
        stored=STORED[kept],
        attention=attention_of(model, weights.device.type),
    )


def _batched(batching: Batching, found: Served) -> Batched:
    """The times of one way, for the record."""
    return Batched(
        batching=batching,
        serve_s=found.serve_s,
        n_steps=found.n_steps,
        row_use=found.row_use,
        tokens_per_s=sum(map(len, found.tokens)) / found.serve_s,
        first_token_s=tuple(found.first_token_s),
        done_s=tuple(found.done_s),
    )


def _loaded(name: str, asked: GenerationSettings, device: str) -> AnyPretrained:
    """The model with its weights as they are asked for.

    Raises:
        PeakwardError: as `continued`, of a model.
    """
    how: dict[str, Any] = {"attention": "sdpa", "device": device, "dtype": TYPES[asked.precision]}
    if asked.weights == "dense":
        return load_any(name, **how)
    return load_quantised(name, asked.weights, text=asked.calibration_text, **how)


def _as_asked(asked: GenerationSettings) -> dict[str, Any]:
    """The fields of a record that say how its passes were carried out."""
    text = asked.calibration_text
    return {
        "computed_in": asked.precision,
        "weights": asked.weights,
        "calibrated_on": None if text is None else text.name,
        "kv_cache": asked.kv_cache,
    }


def _continuations(
    found: AnyPretrained,
    prompts: Sequence[str],
    ids: Sequence[Sequence[int]],
    made: Sequence[list[int]],
) -> tuple[Continuation, ...]:
    return tuple(
        Continuation(
            prompt=prompt,
            text=found.words.added(given, new),
            n_prompt_tokens=len(given),
            n_new_tokens=len(new),
            ended=new[-1] in found.ends,
        )
        for prompt, given, new in zip(prompts, ids, made, strict=True)
    )


def decoding_of(
    found: AnyPretrained,
    ids: Sequence[list[int]],
    by: Sampling,
    n: int,
    *,
    guesses: int,
    draft: "AnyModel | None",
    step: DecodeStep = "separate",
    kept: GenerationCache = "static",
) -> Decoding:
    """A decoding of n new tokens for each prompt, in a cache of their size.

    Args:
        draft: as `draft_of` gives it, for guesses above 0.
        kept: how keys and values are held.
        step: fused for at most 16 tokens at once: those of all prompts, or of one with its guesses.
    """
    weights = found.model.embedding.weight
    device = weights.device

    def cache(model: AnyModel) -> ContiguousCache:
        return ContiguousCache(
            model.shape,
            n_rows=len(ids),
            capacity=max(map(len, ids)) + n + guesses,
            device=str(device),
            dtype=weights.dtype,
            stored=STORED[kept],
            attention=attention_of(model, device.type),
        )

    def with_cache(model: AnyModel) -> tuple[nn.Module, ContiguousCache]:
        held = cache(model)
        return stepped(model, held, step), held

    def common(draft: AnyModel) -> int | None:
        """The first tokens that mean the same in both: all, but where one has more rows behind them."""
        alike = draft.shape.vocab_size == found.model.shape.vocab_size
        return None if alike else found.words.vocab_size

    of_text: dict[str, Any] = {"by": by, "most_new_tokens": n, "ends": found.ends}
    if guesses:
        drafter = NGrams() if draft is None else ModelDraft(*with_cache(draft), common(draft))
        return Speculation(*with_cache(found.model), drafter, n_guessed=guesses, **of_text)
    return loop_of(found.model, cache(found.model), taken(found.model, step), **of_text)


def stepped(model: AnyModel, held: ContiguousCache, step: DecodeStep) -> nn.Module:
    """A model that makes its passes so on that cache; by its modules where the kernels do not take it."""
    if not isinstance(model, Decoder) or taken(model, step) == "separate":
        return model
    from peakward.lab.inference.fused_step import FusedDecoder

    return FusedDecoder(model, held)


def taken(model: AnyModel, step: DecodeStep) -> DecodeStep:
    """The step that a model or a draft can make beside one that was asked for of the model. A distilled draft
    has blocks of its own."""
    if not isinstance(model, Decoder) or any(type(each) is not Block for each in model.blocks):
        return "separate"
    return "separate" if model_obstacle(model.shape, "dense") is not None else step


def loop_of(
    model: AnyModel, cache: ContiguousCache | PagedCache, step: DecodeStep, **of_text: Any
) -> Decoding:
    """The loop without guesses."""
    if step == "fused" and isinstance(model, Decoder):
        from peakward.lab.inference.fused_step import FusedDecoding

        return FusedDecoding(model, cache, **of_text)
    return Decoding(model, cache, **of_text)


def _encoded(
    found: AnyPretrained,
    prompts: Sequence[str],
    max_new_tokens: int,
    guesses: int = 0,
    draft: "AnyModel | None" = None,
) -> list[list[int]]:
    """The tokens of each prompt.

    Raises:
        PeakwardError: as `continued`, of prompts.
    """
    ids: list[list[int]] = [found.words.of_prompt(prompt).tolist() for prompt in prompts]
    models = {"": found.model} | ({} if draft is None else {"the draft ": draft})
    for prompt, each in zip(prompts, ids, strict=True):
        if not each:
            raise PeakwardError(
                f"expected a prompt of at least one token, got {quoted(prompt)}: give some text"
            )
        for role, model in models.items():
            _expect_taken(model, role, len(each), max_new_tokens, guesses)
    return ids


def _expect_taken(model: AnyModel, role: str, n_prompt: int, n_new: int, guesses: int) -> None:
    """Refuses a text that is longer than the model takes. Guesses are computed behind the last token, where a
    table of positions may have ended."""
    shape = model.shape
    beyond = guesses if shape.positions in LIMITED else 0
    if n_prompt + n_new + beyond <= shape.max_seq_len:
        return
    asked = "a prompt, new tokens and guesses" if beyond else "a prompt and new tokens"
    last = f", {n_new:,} and {beyond:,}" if beyond else f" and {n_new:,}"
    raise PeakwardError(
        f"expected {asked} of at most {shape.max_seq_len:,}, which {role}{shape.name} takes, got "
        f"{n_prompt:,}{last}: shorten the prompt, or ask for fewer{' or for another draft' if role else ''}"
    )


def _of_model(model: AnyModel) -> dict[str, Any]:
    """The fields of a record that say what computed."""
    if isinstance(model, Decoder):
        return {"shape": model.shape}
    return {"shape": None, "computed_by": f"{model.kind} of transformers {version('transformers')}"}


def _step_of(
    model: AnyModel, asked: AskedStep, not_fused: Callable[[ModelShape], str | None]
) -> tuple[DecodeStep, str | None]:
    """The step that is taken, and why it is not the fused one where nothing else was asked for.

    Raises:
        PeakwardError: a fused step that was asked for and cannot be taken.
    """
    if asked == "separate":
        return "separate", None
    reason = _not_fused(model, not_fused)
    if asked == "fused" and reason is not None:
        raise PeakwardError(f"expected a generation that can take the fused step: {reason}")
    return "separate" if reason else "fused", reason


def _not_fused(model: AnyModel, on_machine: Callable[[ModelShape], str | None]) -> str | None:
    if isinstance(model, Decoder):
        return on_machine(model.shape)
    return f"decode-step fused needs a model that Peakward's decoder can express, got {model.kind}"
