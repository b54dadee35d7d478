"""Generation of tokens, one after another."""

from typing import NamedTuple

import msgspec
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from faults.lab import Lab, Step
from faults.records import Fault, Seen
from peakward.models.presets import model
from peakward.records.case import Configuration, DeviceType, ModelCase, Workload

N_TOKENS = 48


class Sizes(NamedTuple):
    """Of the model and its prompts."""

    n_embd: int
    batch_size: int
    n_prompt: int


SIZES: dict[DeviceType, Sizes] = {
    "cpu": Sizes(768, 1, 16),
    # A pass over the prompts takes 11 ms on an H100 at 0.6 of its rate: four times what the host needs to
    # launch one, which hides what shorter ones cost.
    "cuda": Sizes(4096, 8, 1024),
}


def generated(lab: Lab, n_tokens: int, *, n_recomputed: int, name: str) -> Seen:
    """GPT-2 with random weights writes so many tokens in each step, the first of them without a cache."""
    n_embd, batch_size, n_prompt = SIZES[lab.device]
    dtype = torch.bfloat16 if lab.device == "cuda" else torch.float32
    config = GPT2Config(
        vocab_size=1024,
        n_embd=n_embd,
        n_layer=2,
        n_head=n_embd // 64,
        n_positions=n_prompt + n_tokens,
        bos_token_id=0,
        eos_token_id=0,
    )

    def build() -> Step:
        with torch.device(lab.device):
            made = GPT2LMHeadModel(config).to(dtype).eval()
            prompt = torch.randint(config.vocab_size, (batch_size, n_prompt))

        @torch.no_grad()
        def step() -> None:
            ids, past, new = prompt, None, prompt
            for at in range(n_tokens):
                cached = at >= n_recomputed
                given = ids if past is None else new
                out = made(given, past_key_values=past, use_cache=cached)
                past = out.past_key_values if cached else None
                new = out.logits[:, -1:].argmax(-1)
                ids = torch.cat((ids, new), 1)

        return step

    return lab.traced(build, name=name)


def _recomputed(lab: Lab, n_tokens: float) -> Seen:
    return generated(lab, N_TOKENS, n_recomputed=int(n_tokens), name=f"generation-{n_tokens:g}")


def _decode(lab: Lab, n_sequences: float) -> Seen:
    """Without the fault, if it is one, prompts go through instead. Compiled: operator by operator a token
    took 4.7 ms on an H100, more than twice the least time, so that its reading was not what held it."""
    work = (
        Workload(batch_size=int(n_sequences), seq_len=1024, pass_="decode")
        if n_sequences
        else Workload(batch_size=8, seq_len=1024, pass_="prefill")
    )
    good = Configuration(precision="bf16", attention="sdpa", compile="default", cuda_graphs=True)
    case = ModelCase(model=model("2.7B"), workload=work, configuration=good, device=lab.device)
    # A token and a prompt are not the same work.
    return msgspec.structs.replace(lab.case(case, profiled=False), step_s=None)


FAULTS = (
    Fault(
        "GEN001",
        "generation without a cache",
        f"of {N_TOKENS} tokens",
        (12, 24, 48),
        _recomputed,
        "any",
    ),
    Fault("GEN002", "decoding of few sequences", "sequences", (1, 4), _decode),
)
