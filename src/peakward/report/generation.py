"""The report of a generation: the texts, then how fast they came. Of a queue the times come first."""

import re
from collections.abc import Sequence

import numpy as np

from peakward.levers.weights import QUANTISED
from peakward.records.case import DecodeStep
from peakward.records.errors import printable
from peakward.records.generation import Batched, Continuation, Generation, Sampling, Serving
from peakward.records.study import Column, Table
from peakward.report.document import (
    Code,
    Document,
    Fact,
    Facts,
    Figure,
    Figures,
    Items,
    Leaf,
    Panel,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell, format_spread

NOT_COMPUTED = "not computed"
JOINERS = ("\u200c", "\u200d")


def document(found: Generation) -> Document:
    """Figures first, since they are of all texts; then each text under the tokens that it has."""
    source = _source(found)
    return Document(
        title=f"Text of {printable(found.model)}",
        headline=printable(f"{source}, on {found.environment.device_name}: {_speed(found)}"),
        blocks=(
            *(Panel(title=_title(each), blocks=_lines(each)) for each in found.continuations),
            _figures(found),
            _facts(found),
        ),
    )


def _source(found: Generation | Serving) -> str:
    by = f" by {found.computed_by}" if found.computed_by else ""
    fewer = "" if found.weights == "dense" else f" with weights {found.weights}"
    return f"{found.model}, stored as {found.stored}, computed in {found.computed_in}{fewer}{by}"


def _speed(found: Generation) -> str:
    first = format_cell(found.time_to_first_token_s, "s")
    if found.tokens_per_s is None:
        return f"first token after {first}"
    return f"{format_cell(found.tokens_per_s, 'tokens_per_s')}, first token after {first}"


def _title(each: Continuation) -> str:
    end = "ended by the model" if each.ended else "cut at the limit"
    new = "1 new token" if each.n_new_tokens == 1 else f"{each.n_new_tokens:,} new tokens"
    return f"{new} after a prompt of {each.n_prompt_tokens:,}, {end}"


def _lines(each: Continuation) -> tuple[Leaf, ...]:
    """The prompt and the text behind it, in the lines and with the indentation that they have."""
    lines = (each.prompt + each.text).expandtabs(4).splitlines()
    return (Code(text="\n".join(map(_shown, lines)), language="text"),)


def _shown(line: str) -> str:
    """A line as a terminal may receive it. Joiners, which emoji, Persian and Hindi are written with, are
    invisible and change nothing else."""
    return "".join(
        part if part in JOINERS else printable(part) for part in re.split("([\u200c\u200d])", line)
    )


def _figures(found: Generation) -> Figures:
    share = NOT_COMPUTED
    if found.bandwidth_share is not None:
        share = format_cell(found.bandwidth_share, "share")
    return Figures(
        figures=(
            Figure(
                name="first token after",
                value=format_cell(found.time_to_first_token_s, "s"),
                detail=f"prefill {format_cell(found.prefill_s, 's')}",
            ),
            Figure(
                name="decode",
                value=NOT_COMPUTED
                if found.tokens_per_s is None
                else format_cell(found.tokens_per_s, "tokens_per_s"),
                detail=f"{found.n_steps:,} steps in {format_cell(found.decode_s, 's')}",
            ),
            *_beside_prediction(found),
            Figure(name="share of bandwidth", value=share, detail=_basis(found)),
        )
    )


def _beside_prediction(found: Generation) -> tuple[Figure, ...]:
    """A step, and its prediction or why there is none; nothing where none was asked for."""
    if (told := found.predicted_step_s) is not None:
        detail = f"predicted {format_spread(told, 's')}, without the choice of a token"
    elif found.not_predicted is not None:
        detail = f"not predicted: {printable(found.not_predicted)}"
    else:
        return ()
    step = format_cell(found.decode_s / found.n_steps, "s")
    return (Figure(name="a step", value=step, detail=detail),)


def _basis(found: Generation) -> str:
    if found.bytes_per_step is None:
        return "bytes of a step not known"
    if found.bandwidth is None:
        return "needs `peakward devices calibrate`"
    rate = format_cell(found.bandwidth.bytes_per_s, "bytes_per_s")
    return f"of {rate}, {found.bandwidth.source}"


def _facts(found: Generation) -> Facts:
    guessed = (
        Fact(
            name="guessed tokens kept",
            value=f"{found.n_kept:,} of {found.n_guessed:,}, guessed by {printable(found.draft or 'ngrams')}",
        ),
    )
    launched = "" if found.captured is not False else ", launched one by one by the host"
    step = _step(found.decode_step, found.not_fused, launched=launched)
    return Facts(
        facts=(
            Fact(name="tokens chosen", value=_chosen(found.sampling)),
            *(guessed if found.guesses else ()),
            *_kept(found),
            Fact(name="step of decode", value=printable(step)),
            Fact(name="bytes that a step reads", value=_bytes(found)),
        )
    )


def _kept(found: Generation | Serving) -> tuple[Fact, ...]:
    """The forms of weights and cache, told where they are not in the type of the passes."""
    facts = [] if found.weights == "dense" else [Fact(name="weights", value=_weights(found))]
    if found.kv_cache != "static":
        value = f"in {found.kv_cache}, with a scale for each head's"
        facts.append(Fact(name="keys and values", value=value))
    return tuple(facts)


def _weights(found: Generation | Serving) -> str:
    form = QUANTISED[found.weights].format
    inputs = "" if form.group_size is None else f" and {form.group_size} inputs"
    text = found.calibrated_on
    rounded = "" if text is None else f", rounded for the inputs that {printable(text)} makes"
    return (
        f"of the blocks in {form.type} with a scale for each output{inputs}{rounded}; others in "
        f"{found.computed_in}"
    )


def _step(step: DecodeStep, not_fused: str | None, *, launched: str) -> str:
    if step == "fused":
        return "fused, in five kernels a layer"
    return f"separate operators{launched}" + (f": {not_fused}" if not_fused else "")


def _bytes(found: Generation) -> str:
    if found.bytes_per_step is None:
        return f"{NOT_COMPUTED}: a token takes some experts, or layers keep unequally much"
    return format_cell(found.bytes_per_step, "bytes")


def _chosen(by: Sampling) -> str:
    among = [] if by.top_k is None else [f"top-k {by.top_k:,}"]
    among += [] if by.top_p is None else [f"top-p {by.top_p:g}"]
    if by.temperature:
        return ", ".join((f"temperature {by.temperature:g}", *among, f"seed {by.seed}"))
    without = f"; without effect at temperature 0: {', '.join(among)}" if among else ""
    return f"the likeliest{without}"


SERVING_CONVENTIONS = (
    "All requests are there at the start. The time to first token is from the start to the first token of a "
    "request, its wait for a row included.",
    "A static batch takes as many requests as there are rows, and the next one begins when the longest text "
    "has ended. With continuous batching a row takes the next request when its text has ended.",
    "A step computes all rows. The share of rows' steps that made a token is what batching can change.",
    "Both ways were run once, one after the other, after a round that was not timed. Loading is not timed.",
)


def served_document(found: Serving) -> Document:
    """The times of both ways, then the texts."""
    source = _source(found)
    n = len(found.continuations)
    return Document(
        title=f"A queue of {n:,} for {printable(found.model)}",
        headline=printable(f"{source}, on {found.environment.device_name}: {_gain(found)}"),
        blocks=(TableBlock(table=_ways(found)), _queue(found)),
        sections=(
            Section(
                title="Texts",
                blocks=tuple(
                    Panel(title=_title(each), blocks=_lines(each)) for each in found.continuations
                ),
                folded=True,
            ),
            Section(title="Conventions", blocks=(Items(texts=SERVING_CONVENTIONS),), folded=True),
        ),
    )


def _gain(found: Serving) -> str:
    ways = {each.batching: each for each in found.ways}
    static, continuous = ways["static"], ways["continuous"]
    ratio = continuous.tokens_per_s / static.tokens_per_s
    return (
        f"continuous batching makes {format_cell(continuous.tokens_per_s, 'tokens_per_s')}, "
        f"{format_cell(ratio, 'ratio')} static batching (one run of each, so without an interval); first "
        "token after "
        f"{format_cell(_median(continuous.first_token_s), 's')} against "
        f"{format_cell(_median(static.first_token_s), 's')} (medians)"
    )


def _median(values: tuple[float, ...]) -> float:
    return float(np.median(values))


def _ways(found: Serving) -> Table:
    return Table(
        title="Static and continuous batching",
        columns=(
            Column(name="batching", unit="name"),
            Column(name="tokens/s", unit="tokens_per_s"),
            Column(name="time", unit="s"),
            Column(name="steps", unit="count"),
            Column(name="rows in use", unit="share"),
            Column(name="first token, median", unit="s"),
            Column(name="first token, 95th percentile", unit="s"),
            Column(name="text, median", unit="s"),
            Column(name="text, 95th percentile", unit="s"),
        ),
        rows=tuple(_row(each) for each in found.ways),
    )


def _row(each: Batched) -> tuple[str | float | int | None, ...]:
    times = (each.first_token_s, each.done_s)
    of_texts = (float(np.quantile(part, share)) for part in times for share in (0.5, 0.95))
    return (
        each.batching,
        each.tokens_per_s,
        each.serve_s,
        each.n_steps,
        each.row_use,
        *of_texts,
    )


def _range(counts: Sequence[int]) -> str:
    """The least and the most: "5 to 12"; one number where they are equal."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _queue(found: Serving) -> Facts:
    new = [each.n_new_tokens for each in found.continuations]
    prompts = [each.n_prompt_tokens for each in found.continuations]
    step = _step(found.decode_step, found.not_fused, launched="")
    return Facts(
        facts=(
            Fact(name="tokens chosen", value=_chosen(found.sampling)),
            *_kept(found),
            Fact(name="step of decode", value=printable(step)),
            Fact(name="rows", value=f"{found.rows:,}"),
            Fact(name="pages", value=f"{found.n_pages:,} of {found.page_size:,} tokens"),
            Fact(name="tokens of a prompt", value=_range(prompts)),
            Fact(name="tokens of a text", value=_range(new)),
            Fact(name="texts alike in both", value=f"{found.n_equal:,} of {len(new):,}"),
        )
    )
