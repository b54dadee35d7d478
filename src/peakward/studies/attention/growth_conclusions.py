"""What the numbers of `attention` say of growth with the length."""

from collections.abc import Sequence
from itertools import groupby

from peakward.records.measurement import Measurement
from peakward.records.study import Conclusion, Evidence
from peakward.stats.compare import median_ratio
from peakward.studies.attention.grid import place
from peakward.studies.attention.growth import Growth
from peakward.studies.attention_arms import NAIVE
from peakward.studies.parts import evidence, say
from peakward.studies.readings import processes, time


def growth(grown: Sequence[Growth]) -> tuple[Conclusion, ...]:
    """Naive beside the least of memory held, by precision and head dim: the exponents of memory, and how
    the time of backward grows at the long end.

    No power law fits a time over all lengths: short ones are launches. Its exponent, which the table
    has, is no claim about how attention grows.
    """
    said = []
    for _, of in groupby(grown, key=lambda each: (each.last.precision, each.last.head_dim)):
        several = [each for each in of if each.held is not None and each.backward is not None]
        naive = next((each for each in several if each.last.arm == NAIVE), None)
        if naive is not None and len(several) > 1:
            said.append(_growth(naive, min(several, key=_held)))
    return tuple(said)


def _held(grown: Growth) -> float:
    assert grown.held is not None
    return grown.held


def _growth(naive: Growth, least: Growth) -> Conclusion:
    if naive.last.arm == least.last.arm:
        text = "In {place} no memory held grows slower than naive's, with the length to the power of {held}."
        return say(text, place=place(naive.last), held=_of_held(naive))
    text = (
        "In {place} memory held for backward grows with the length to the power of {held} in naive "
        "attention and of {less} in {arm}"
    )
    fields: dict[str, str | Evidence] = {
        "place": place(naive.last),
        "arm": least.last.arm.name,
        "held": _of_held(naive),
        "less": _of_held(least),
    }
    shared = sorted(naive.backward_at.keys() & least.backward_at.keys())[-2:]
    if len(shared) == 2:
        text += (
            "; from length {short} to {long} backward comes to take {times} as long in the one ({low} to "
            "{high}) and {other} in the other ({other_low} to {other_high}), intervals{processes}"
        )
        fields["processes"] = processes(*(naive.backward_at[each] for each in shared))
        fields |= _lengths(shared, naive) | _longer(shared, naive, "times", "low", "high")
        fields |= _longer(shared, least, "other", "other_low", "other_high")
    return say(f"{text}.", **fields)


def _of_held(grown: Growth) -> Evidence:
    quantity = f"exponent of memory held, {grown.last.arm.name}"
    return evidence(quantity, _held(grown), "count", *grown.sources)


def _lengths(shared: Sequence[int], grown: Growth) -> dict[str, Evidence]:
    return {
        name: evidence(f"{name} length", seq_len, "count", grown.backward_at[seq_len])
        for name, seq_len in zip(("short", "long"), shared, strict=True)
    }


def _longer(shared: Sequence[int], grown: Growth, *names: str) -> dict[str, Evidence]:
    """The time of backward at the longer length over that at the shorter, and the ends of it."""
    both: list[Measurement] = [grown.backward_at[seq_len] for seq_len in shared]
    short_s, long_s = (time(each) for each in both)
    assert short_s is not None and long_s is not None
    found = median_ratio(short_s, long_s)
    quantity = f"growth of backward time, {grown.last.arm.name}"
    ends = (("", found.estimate), (", low end", found.low), (", high end", found.high))
    return {
        name: evidence(quantity + end, value, "ratio", *both)
        for name, (end, value) in zip(names, ends, strict=True)
    }
