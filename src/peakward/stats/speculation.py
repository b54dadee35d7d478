"""The worth of guessed tokens, by the texts of one measurement."""

import math

from peakward.records.case import SpeculationCase
from peakward.records.measurement import Interval, Measurement, Speculated
from peakward.stats.summary import interval_of_means


def accepted_share(found: Speculated) -> float | None:
    """The share of guessed tokens that were accepted, of those whose turn came: one behind a refused token is
    not judged. None where no turn came."""
    kept = sum(n * rounds for n, rounds in enumerate(found.accepted))
    judged = kept + sum(found.accepted[:-1])
    return kept / judged if judged else None


def tokens_per_pass(case: SpeculationCase, found: Speculated) -> float | None:
    """The tokens that a pass of the model made, the first of each text left out; None where it made none."""
    return case.n_prompts * (case.n_new_tokens - 1) / found.n_rounds if found.n_rounds else None


def speedup(measured: Measurement) -> Interval | None:
    """The time of all texts without guesses over that with them, with a t-interval at 95% over the texts.
    None where fewer than two were made."""
    found = measured.speculated
    if found is None or len(found.plain_s) < 2:
        return None
    pairs = list(zip(found.plain_s, measured.runs[0].steps_s, strict=True))
    logs = interval_of_means([math.log(plain / guessed) for plain, guessed in pairs])
    reach = math.exp(logs.high - logs.estimate)
    whole = sum(plain for plain, _ in pairs) / sum(guessed for _, guessed in pairs)
    return Interval(estimate=whole, low=whole / reach, high=whole * reach)
