"""From prompts to texts: a real model, its words and a cache, timed."""

from collections.abc import Sequence
from time import perf_counter

import torch

from peakward.lab.inference.generate import Generated, generate
from peakward.lab.inference.pretrained import Pretrained, load
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.inference.speculation import speculate
from peakward.lab.models.decoder import Decoder
from peakward.records.errors import PeakwardError, quoted
from peakward.records.generation import Continuation, Generation, Sampling
from peakward.records.measurement import Environment

TYPES: dict[str, tuple[str, torch.dtype]] = {
    "cpu": ("fp32", torch.float32),
    "cuda": ("bf16", torch.bfloat16),
}
"""The type of weights and cache on each kind of device."""
WARM_UP_TOKENS = 3
"""Tokens of the round that is not timed: memory is taken, and libraries are set up."""


def continued(
    name: str,
    prompts: Sequence[str],
    *,
    by: Sampling,
    max_new_tokens: int,
    guesses: int,
    environment: Environment,
) -> Generation:
    """The texts behind these prompts, without a bandwidth beside their rates.

    Args:
        name: the model, as `pretrained.load` takes it.
        guesses: the most tokens that are guessed at a time; above 0 for one prompt and no temperature.
        environment: the device and the software that this runs on.

    Raises:
        PeakwardError: what `pretrained.load` raises; an empty prompt, or one that is longer than the model
            takes with its new tokens.
    """
    device = environment.device_type
    computed_in, dtype = TYPES[device]
    found = load(name, attention="sdpa", device=device, dtype=dtype)
    shape = found.model.shape
    warm_up = min(WARM_UP_TOKENS, max_new_tokens)
    _run(found, _encoded(found, prompts, max_new_tokens), by, warm_up, guesses)
    began = perf_counter()
    ids = _encoded(found, prompts, max_new_tokens)
    encode_s = perf_counter() - began
    made = _run(found, ids, by, max_new_tokens, guesses)
    n_decoded = len(prompts) * made.n_steps + made.n_kept
    per_position = 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim * dtype.itemsize
    return Generation(
        model=shape.name,
        shape=shape,
        stored=found.stored,
        computed_in=computed_in,
        environment=environment,
        sampling=by,
        continuations=tuple(
            Continuation(
                prompt=prompt,
                text=found.words.decode(new),
                n_prompt_tokens=len(given),
                n_new_tokens=len(new),
                ended=new[-1] in found.ends,
            )
            for prompt, given, new in zip(prompts, ids, made.tokens, strict=True)
        ),
        prefill_s=made.prefill_s,
        time_to_first_token_s=encode_s + made.prefill_s,
        decode_s=made.decode_s,
        n_steps=made.n_steps,
        guesses=guesses,
        n_guessed=made.n_guessed,
        n_kept=made.n_kept,
        tokens_per_s=n_decoded / made.decode_s if made.n_steps else None,
        bytes_per_step=_weight_bytes(found.model) + made.positions * per_position,
        bandwidth=None,
        bandwidth_share=None,
    )


def _run(
    found: Pretrained, ids: Sequence[list[int]], by: Sampling, n: int, guesses: int
) -> Generated:
    """n new tokens for each prompt, in a cache of their size."""
    weights = found.model.embedding.weight
    cache = ContiguousCache(
        found.model.shape,
        n_rows=len(ids),
        capacity=max(map(len, ids)) + n,
        device=str(weights.device),
        dtype=weights.dtype,
    )
    if guesses:
        return speculate(
            found.model, ids[0], cache, n_guessed=guesses, max_new_tokens=n, ends=found.ends
        )
    return generate(found.model, ids, cache, by=by, max_new_tokens=n, ends=found.ends)


def _encoded(found: Pretrained, prompts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
    """The tokens of each prompt.

    Raises:
        PeakwardError: as `continued`, of prompts.
    """
    ids: list[list[int]] = [found.words.encode(prompt).tolist() for prompt in prompts]
    longest = found.model.shape.max_seq_len
    for prompt, each in zip(prompts, ids, strict=True):
        if not each:
            raise PeakwardError(
                f"expected a prompt of at least one token, got {quoted(prompt)}: give some text"
            )
        if len(each) + max_new_tokens > longest:
            raise PeakwardError(
                f"expected a prompt and new tokens of at most {longest:,}, which {found.model.shape.name} "
                f"takes, got {len(each):,} and {max_new_tokens:,}: shorten the prompt, or ask for fewer"
            )
    return ids


def _weight_bytes(model: Decoder) -> int:
    """The bytes of weights that a step reads: all, but of an embedding that is not the head a row a token."""
    whole = sum(each.nbytes for each in model.parameters())
    return whole if model.shape.tied_head else whole - model.embedding.weight.nbytes
