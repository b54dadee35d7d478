"""Whether predicted memory has become worse than the stored accuracy says."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from peaks.judge import by_kind, group
from peaks.records import MemoryAccuracy, Peak, Verdict
from peaks.replay import Replay
from stored_results import index

SLACK = 0.001
"""A tenth of a percentage point of an error."""


def newest(folder: Path) -> MemoryAccuracy:
    """The latest stored accuracy."""
    stored = index(folder).newest("peak-memory")["all"]
    return msgspec.json.decode(stored.read(), type=MemoryAccuracy)


def changed_cases(stored: MemoryAccuracy, now: Replay) -> list[str]:
    """Cases that were predicted and no longer are, or the other way round."""
    before, after = (
        {(each.device, each.key, type(each).__name__): each.label for each in found}
        for found in ((*stored.verdicts, *stored.peaks), (*now.verdicts, *now.peaks))
    )
    return [f"lost: {before[each]}" for each in before.keys() - after.keys()] + [
        f"not stored: {after[each]}" for each in after.keys() - before.keys()
    ]


def regressions(stored: MemoryAccuracy, now: Sequence[Peak]) -> list[str]:
    """What has become worse by more than SLACK, kind by kind: a kind has the cases that it had."""
    current = {(each.device, each.key): each for each in now}
    return [
        f"{kind} {value}: {name} {stood:.2%}, now {stands:.2%}"
        for (kind, value), before in by_kind(stored.peaks).items()
        for name, stood, stands in _errors(before, current)
        if stands - stood > SLACK
    ]


def turned(stored: MemoryAccuracy, now: Sequence[Verdict]) -> list[str]:
    """Cases that were told rightly whether they fit, and no longer are."""
    right = {(each.device, each.key) for each in stored.verdicts if each.right}
    return [each.label for each in now if (each.device, each.key) in right and not each.right]


def _errors(
    before: Sequence[Peak], current: dict[tuple[str, str], Peak]
) -> list[tuple[str, float, float]]:
    """Of those that are still there, by name."""
    keys = [(each.device, each.key) for each in before]
    after = [current[key] for key in keys if key in current]
    if not after:
        return []
    old, new = group("", "", before), group("", "", after)
    return [(name, getattr(old, name), getattr(new, name)) for name in ("median", "p90", "worst")]
