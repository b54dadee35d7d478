"""Whether one way to train ends worse than another, by the last losses of the same seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from peakward.stats.summary import interval_of_means

LEAST_SEEDS = 2
"""One seed has no spread."""


def judged(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Each arm against the first by the last held-out loss, paired by seed; of seeds that both have.

    An arm is no worse where the 95% interval of the mean difference ends below the standard deviation of the
    first's own losses over the seeds, and worse where it begins above 0. One with fewer than two seeds is
    left out, one with a loss that is not finite has diverged. Nothing is judged where the first has.
    """
    (first, base), *others = ((name, _last(each)) for name, each in runs.items())
    own = [loss for loss in base.values() if loss is not None]
    if len(own) < max(LEAST_SEEDS, len(base)):
        return {}
    spread = statistics.stdev(own)
    found: dict[str, Any] = {first: {"mean": statistics.fmean(own), "stdev_over_seeds": spread}}
    for name, losses in others:
        shared = [seed for seed in losses if seed in base]
        if diverged := [seed for seed in shared if losses[seed] is None]:
            found[name] = {"diverged_seeds": diverged}
        elif len(shared) >= LEAST_SEEDS:
            found[name] = _against(
                [losses[seed] for seed in shared], [base[seed] for seed in shared], spread
            )
    return found


def _last(runs: Sequence[Mapping[str, Any]]) -> dict[int, Any]:
    return {each["seed"]: each["curve"][-1]["held_out"] for each in runs}


def _against(mine: list[float], theirs: list[float], spread: float) -> dict[str, Any]:
    differences = [a - b for a, b in zip(mine, theirs, strict=True)]
    interval = interval_of_means(differences)
    return {
        "mean": statistics.fmean(mine),
        "stdev_over_seeds": statistics.stdev(mine),
        "differences": differences,
        "mean_difference": interval.estimate,
        "interval": [interval.low, interval.high],
        "no_worse": interval.high < spread,
        "worse": interval.low > 0,
    }


def sentences(found: Mapping[str, Any]) -> list[str]:
    """The verdicts, a line each, the first arm's before the others'."""
    if not found:
        return ["Nothing is judged: the first arm has no two finite losses."]
    (first, base), *others = found.items()
    spread = base["stdev_over_seeds"]
    lines = [
        f"{first} ends at {base['mean']:.4f}, with a deviation of {spread:.4f} over its seeds."
    ]
    for name, each in others:
        if "diverged_seeds" in each:
            lines.append(f"{name} diverges (seeds {', '.join(map(str, each['diverged_seeds']))}).")
            continue
        low, high = each["interval"]
        lines.append(
            f"{name} ends {each['mean_difference']:+.4f} from it (95% interval {low:+.4f} to {high:+.4f}, "
            f"{len(each['differences'])} seeds): {_word(each)}."
        )
    return lines


def _word(each: Mapping[str, Any]) -> str:
    if each["worse"]:
        return "worse, by less than a deviation" if each["no_worse"] else "worse"
    return "no worse" if each["no_worse"] else "not decided"
