"""The studies by name. Light: a study's module is loaded when it is asked for."""

import importlib
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from peakward.records.errors import look_up

if TYPE_CHECKING:
    from peakward.studies.engine import Study


class Uses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many values a study uses of an option that not every study takes; None is any number."""

    models: int | None = None
    seq_lens: int | None = None
    batch_size: int | None = None
    precisions: int | None = 0
    limits_bytes: int | None = 0
    timeout_s: int | None = None
    text: int = 0
    tokenizer: int = 0
    workers: int | None = 0


NO_CASES = Uses(models=0, seq_lens=0, batch_size=0, timeout_s=0)
PIECES = Uses(models=0, seq_lens=0, batch_size=0)
"""A study of small pieces of code takes none of a model's options."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study's line in a list."""

    name: str
    question: str
    """The question that the study answers, in one line."""
    measures: Literal["cases", "device", "nothing"] = "cases"
    """device: its calibration, and no case. nothing: it is arithmetic, and needs no torch."""
    uses: Uses = Uses()
    """The options that it takes."""


STUDIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="warmup",
            question="How far off is a benchmark without warm-up steps, and what did the first one do?",
        ),
        Entry(
            name="throughput",
            question="What does lower precision gain in tokens/s, and which sizes does it let train?",
            uses=Uses(precisions=None, limits_bytes=None),
        ),
        Entry(
            name="kernels",
            question="Which kernels take a step's time, and how much of them are matmuls?",
        ),
        Entry(
            name="roofline",
            question="How near to this device's roof is each operator, and what moves it there?",
            uses=Uses(seq_lens=1, precisions=None),
        ),
        Entry(
            name="attention-parts",
            question="What does the softmax take inside attention, against its FLOPs?",
        ),
        Entry(
            name="attention",
            question="What does each attention take in time and memory, and how does it grow?",
            uses=Uses(models=0, precisions=None, limits_bytes=None),
        ),
        Entry(
            name="flash",
            question="How near to the roof is our attention, and each of its rivals?",
            uses=Uses(models=0, precisions=None),
        ),
        Entry(
            name="compile",
            question="What does torch.compile gain by size, and after how many steps does it pay?",
            uses=Uses(seq_lens=1),
        ),
        Entry(
            name="checkpointing",
            question="What does recomputation save in memory, cost in time, and let fit?",
            uses=Uses(precisions=1, limits_bytes=None),
        ),
        Entry(
            name="memory",
            question="What is a step's memory held for, phase by phase, and how does it grow?",
            uses=Uses(precisions=None),
        ),
        Entry(
            name="fusion",
            question="What do separate passes over memory cost, and what does fusing them gain?",
            uses=PIECES,
        ),
        Entry(
            name="layout",
            question="What do strided operands cost, which views copy, and does packing pay?",
            uses=PIECES,
        ),
        Entry(
            name="vectorization",
            question="What do loops in Python cost a matrix product, against NumPy and torch?",
            uses=PIECES,
        ),
        Entry(
            name="accumulation",
            question="What does the type of a running sum cost in digits?",
            uses=PIECES,
        ),
        Entry(
            name="autocast",
            question="Which types does autocast give, and which operations does it keep in fp32?",
            uses=Uses(models=1, seq_lens=0, batch_size=0),
        ),
        Entry(
            name="formats",
            question="What does each number format hold, what does rounding to it lose, and how fast is it?",
            uses=Uses(models=0, seq_lens=0, batch_size=0, text=1),
        ),
        Entry(
            name="precision",
            question="What does each precision gain, what do its casts take, and how far does it drift?",
            uses=Uses(precisions=None),
        ),
        Entry(
            name="nan-hunt",
            question="A run trains well and turns NaN: where, why, what mends it, and what then slows it?",
            uses=Uses(models=1, seq_lens=1, precisions=1, text=1, tokenizer=1),
        ),
        Entry(
            name="decode",
            question="What does a step of generation take, and what does it take of the bandwidth?",
            uses=Uses(precisions=1),
        ),
        Entry(
            name="speculative",
            question="How many guessed tokens are right, what does a round take, and does it pay?",
            uses=NO_CASES,
        ),
        Entry(
            name="kv-cache",
            question="What do keys and values take in memory and time, and what does keeping less lose?",
            uses=Uses(precisions=1, text=1),
        ),
        Entry(
            name="quantization",
            question="What do weights in fewer bits gain in size and speed, and lose on real text?",
            uses=Uses(precisions=1, text=1),
        ),
        Entry(
            name="positions",
            question="What do positions cost, and what do they lose beyond the length trained on?",
            uses=Uses(models=1, precisions=1, text=1),
        ),
        Entry(
            name="collectives",
            question="How fast do ranks exchange tensors, by collective, size and number of ranks?",
            uses=Uses(models=0, seq_lens=0, batch_size=0),
        ),
        Entry(
            name="parallel",
            question="What does each way to share a training step over devices take, and which to choose?",
            uses=Uses(models=1, seq_lens=1, precisions=1),
        ),
        Entry(
            name="data-loading",
            question="When does loading real text hold up a step, and what do workers and pinning gain?",
            uses=Uses(text=1, tokenizer=1, workers=None),
        ),
        Entry(
            name="hierarchy",
            question="How fast and how far is each level of memory, and what does a move take?",
            measures="device",
            uses=NO_CASES,
        ),
        Entry(
            name="scaling",
            question="Which size for a training budget, for a life of serving, and with experts?",
            measures="nothing",
            uses=NO_CASES,
        ),
    )
}


def study_entry(name: str) -> Entry:
    """The line of a study.

    Raises:
        PeakwardError: no such study; names the nearest ones.
    """
    return look_up("a study", name, STUDIES)


def specification(name: str) -> "Study[Any]":
    """Returns what a study measures and says: `STUDY` of its module, which is named with underscores for
    hyphens.

    Raises:
        PeakwardError: as `study_entry`.
    """
    module = importlib.import_module(f"peakward.studies.{study_entry(name).name.replace('-', '_')}")
    return cast("Study[Any]", module.STUDY)
