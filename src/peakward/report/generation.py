"""The report of a generation: the texts, then how fast they came."""

from peakward.records.errors import printable
from peakward.records.generation import Continuation, Generation
from peakward.report.document import Document, Fact, Facts, Figure, Figures, Leaf, Panel, Paragraph
from peakward.report.format import format_cell

NOT_COMPUTED = "not computed"


def document(found: Generation) -> Document:
    """Figures first, since they are of all texts; then each text under the tokens that it has."""
    source = f"{found.model}, stored as {found.stored}, computed in {found.computed_in}"
    return Document(
        title=f"Text of {printable(found.model)}",
        headline=printable(f"{source}, on {found.environment.device_name}: {_speed(found)}"),
        blocks=(
            *(Panel(title=_title(each), blocks=_lines(each)) for each in found.continuations),
            _figures(found),
            _facts(found),
        ),
    )


def _speed(found: Generation) -> str:
    first = format_cell(found.time_to_first_token_s, "s")
    if found.tokens_per_s is None:
        return f"first token after {first}"
    return f"{format_cell(found.tokens_per_s, 'tokens_per_s')}, first token after {first}"


def _title(each: Continuation) -> str:
    end = "ended by the model" if each.ended else "cut there"
    new = "1 token" if each.n_new_tokens == 1 else f"{each.n_new_tokens:,} tokens"
    return f"{new} behind {each.n_prompt_tokens:,}, {end}"


def _lines(each: Continuation) -> tuple[Leaf, ...]:
    """The prompt and the text behind it, a paragraph a line."""
    lines = (each.prompt + each.text).splitlines()
    return tuple(Paragraph(text=printable(line)) for line in lines if line.strip())


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
            Figure(name="share of bandwidth", value=share, detail=_basis(found)),
        )
    )


def _basis(found: Generation) -> str:
    if found.bandwidth is None:
        return "no calibration, no datasheet"
    rate = format_cell(found.bandwidth.bytes_per_s, "bytes_per_s")
    return f"of {rate}, {found.bandwidth.source}"


def _facts(found: Generation) -> Facts:
    by = found.sampling
    chosen = "the likeliest" if by.temperature == 0 else f"temperature {by.temperature:g}"
    if by.temperature and by.top_k is not None:
        chosen += f", top-k {by.top_k:,}"
    if by.temperature and by.top_p is not None:
        chosen += f", top-p {by.top_p:g}"
    if by.temperature:
        chosen += f", seed {by.seed}"
    guessed = (Fact(name="guessed tokens kept", value=f"{found.n_kept:,} of {found.n_guessed:,}"),)
    return Facts(
        facts=(
            Fact(name="tokens chosen", value=chosen),
            *(guessed if found.guesses else ()),
            Fact(name="bytes that a step reads", value=format_cell(found.bytes_per_step, "bytes")),
        )
    )
