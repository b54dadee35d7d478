"""How fast speculation is on a fixed list of prompts, and what each part of a round takes."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import Guess, NGrams, Text
from peakward.lab.inference.generate import Generated, generate, wait
from peakward.lab.inference.named_drafts import draft_of
from peakward.lab.inference.pretrained import AnyModel, Pretrained, attention_of, load
from peakward.lab.inference.quantised import load_quantised
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.inference.speculation import Speculation
from peakward.lab.inference.text import STORED, TYPES, decoding_of, loop_of, stepped, taken
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.layers import n_weights
from peakward.levers.precision import fp32_matmuls
from peakward.levers.weights import CALIBRATED, TEXT
from peakward.records.case import SpeculationCase
from peakward.records.errors import PeakwardError
from peakward.records.generation import PRECISION, Sampling
from peakward.records.measurement import Run, Speculated

PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n",
    "Once upon a time, in a small village by the sea, there lived",
    "Question: Why is the sky blue?\nAnswer:",
    "The first ten prime numbers are 2, 3, 5, 7,",
    "To make a cup of tea, first boil the water. Then",
    "Dear Sir or Madam,\n\nI am writing to",
    "A B C D E F G A B C D E F G A B C",
    "The water cycle has four stages: evaporation,",
    "Monday, Tuesday, Wednesday,",
    "import numpy as np\n\nx = np.zeros((3, 4))\n",
    "In 1969, two astronauts",
)
"""Prose, code, questions, letters and lists. Figures of them are compared, so the list stays as it is; a new
one gets a new name."""
SPANS, SPAN = 8, {"cpu": 1, "cuda": 8}
"""Spans of steps whose times give a median, and the steps of each: a GPU is waited for after several."""


class Texts(NamedTuple):
    """The times of the texts, and what the guesses were worth."""

    run: Run
    speculated: Speculated
    n_parameters: int


class Repeating(NGrams):
    """Guesses the last token again: a guess that takes no time."""

    def guess(self, text: Text, by: Sampling, draws: Tensor) -> Guess:  # noqa: ARG002 (not drawn)
        """See `drafts.Drafter`."""
        last = text.ids.gather(1, text.n[:, None] - 1)
        return Guess(last.expand(-1, draws.shape[1]))


def speculated(case: SpeculationCase, told: Callable[[int], None]) -> Texts:
    """Makes the texts of the case with guesses and without, in turns, and times the parts of a round.

    Args:
        told: is called with the number of texts that are done.

    Raises:
        PeakwardError: more prompts than there are, a case without guesses, or what `pretrained.load` and
            `named_drafts.draft_of` raise.
    """
    if not 1 <= case.n_prompts <= len(PROMPTS) or case.guesses < 1 or case.n_new_tokens < 2:
        raise PeakwardError(
            f"expected 1 to {len(PROMPTS)} prompts, a guess and two new tokens at least, got "
            f"{case.n_prompts}, {case.guesses} and {case.n_new_tokens}: make another case"
        )
    precision = case.precision or PRECISION[case.device]
    with fp32_matmuls(precision):
        return _texts(case, TYPES[precision], told)


def _texts(case: SpeculationCase, dtype: torch.dtype, told: Callable[[int], None]) -> Texts:
    """
    Raises:
        PeakwardError: a fused step of a model that its kernels do not take, or what `_loaded` and
            `named_drafts.draft_of` raise.
    """
    device, step = case.device, case.decode_step
    found = _loaded(case, dtype)._replace(ends=frozenset())
    if taken(found.model, step) != step:
        raise PeakwardError(
            f"expected a model that the fused step takes, got {found.model.shape.name}: make a case with "
            "separate operators"
        )
    draft = draft_of(found, case.draft, device, dtype)
    prompts = [found.words.encode(each).tolist() for each in PROMPTS[: case.n_prompts]]
    by = Sampling(temperature=case.temperature, seed=case.seed)

    longest = max(prompts, key=len)
    ways = {
        guesses: decoding_of(
            found,
            [longest],
            by,
            case.n_new_tokens,
            guesses=guesses,
            draft=draft,
            step=step,
            kept=case.kv_cache,
        )
        for guesses in (0, case.guesses)
    }
    warm_up = [generate(each, prompts[:1]) for each in ways.values()]
    first, made = warm_up[-1].counts, {guesses: list[Generated]() for guesses in ways}
    for number, prompt in enumerate(prompts):
        # Which of both comes first changes from text to text, as what is slow at first would favour one.
        for guesses in sorted(ways, reverse=bool(number % 2)):
            made[guesses].append(generate(ways[guesses], [prompt]))
        told(number + 1)
    plain, guessed = made[0], made[case.guesses]
    last = guessed[-1].counts
    accepted = tuple(b - a for a, b in zip(first.accepted, last.accepted, strict=True))
    pairs = zip(plain, guessed, strict=True)
    parts = [(found.model, 0), (found.model, case.guesses), *(((draft, 0),) if draft else ())]
    parts_s = _steps_s([_admitted(model, n, prompts[0], by, case) for model, n in parts])
    return Texts(
        run=Run(
            warmup_s=tuple(each.text_s for each in warm_up),
            steps_s=tuple(each.text_s for each in guessed),
        ),
        speculated=Speculated(
            plain_s=tuple(each.text_s for each in plain),
            accepted=accepted,
            n_rounds=sum(accepted),
            n_equal=sum(one.tokens == other.tokens for one, other in pairs),
            step_s=parts_s[0],
            check_s=parts_s[1],
            draft_s=0.0 if draft is None else parts_s[2],
            draft_parameters=0 if draft is None else _n_parameters(draft),
        ),
        n_parameters=_n_parameters(found.model),
    )


def _loaded(case: SpeculationCase, dtype: torch.dtype) -> Pretrained[Decoder]:
    """
    Raises:
        PeakwardError: what `pretrained.load` and `load_quantised` raise.
    """
    how: dict[str, Any] = {"attention": "sdpa", "device": case.device, "dtype": dtype}
    if case.weights == "dense":
        return load(case.model, **how)
    text = TEXT if case.weights in CALIBRATED else None
    return load_quantised(case.model, case.weights, text=text, **how)


def _n_parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters()) + n_weights(model)


@torch.inference_mode()
def _steps_s(decodings: Sequence[Decoding]) -> list[float]:
    """The time of a step of each. Spans of all of them are timed in turns."""
    times: list[list[float]] = [[] for _ in decodings]
    for _ in range(SPANS + 1):
        for decoding, own in zip(decodings, times, strict=True):
            wait(decoding.device)
            began = perf_counter()
            decoding.run(SPAN[decoding.device.type])
            wait(decoding.device)
            own.append((perf_counter() - began) / SPAN[decoding.device.type])
    return [median(own[1:]) for own in times]


@torch.inference_mode()
def _admitted(
    model: "AnyModel", guesses: int, prompt: list[int], by: Sampling, case: SpeculationCase
) -> Decoding:
    """A loop behind the prompt, of a model with so many guesses to check, which take no time themselves."""
    weights = model.embedding.weight
    device = weights.device.type
    n = (SPANS + 1) * SPAN[device] * (1 + guesses) + 2
    cache = ContiguousCache(
        model.shape,
        n_rows=1,
        capacity=len(prompt) + n + guesses,
        device=str(weights.device),
        dtype=weights.dtype,
        stored=STORED[case.kv_cache],
        attention=attention_of(model, device),
    )
    of_text: dict[str, Any] = {"by": by, "most_new_tokens": n}
    decoding: Decoding
    if guesses:
        passes = stepped(model, cache, case.decode_step)
        decoding = Speculation(passes, cache, Repeating(), n_guessed=guesses, **of_text)
    else:
        decoding = loop_of(model, cache, taken(model, case.decode_step), **of_text)
    decoding.prepare(len(prompt) + 1, len(prompt) + n)
    decoding.admit(0, prompt, n, 0)
    return decoding
