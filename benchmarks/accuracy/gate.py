"""Whether predictions have become worse than the stored accuracy says."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from accuracy.groups import SOURCES, by_kind, group
from accuracy.records import Accuracy, Group, Replayed
from peakward.records.prediction import Source
from stored_results import index

SLACK = 0.005
"""Half a percentage point, of an error and of a share of cases."""


def newest(folder: Path) -> dict[str, Accuracy]:
    """The latest stored accuracy of each device, by its key."""
    return {
        device: msgspec.json.decode(each.read(), type=Accuracy)
        for device, each in index(folder).newest("accuracy").items()
    }


def lost(stored: Accuracy, now: Sequence[Replayed]) -> list[str]:
    """Cases that were predicted and no longer are."""
    known = {each.key for each in now}
    return [each.label for each in stored.cases if each.key not in known]


def not_stored(stored: Accuracy, now: Sequence[Replayed]) -> list[str]:
    """Cases that are predicted, whose accuracy nobody has looked at."""
    known = {each.key for each in stored.cases}
    return [each.label for each in now if each.key not in known]


def regressions(stored: Accuracy, now: Sequence[Replayed]) -> list[str]:
    """What has become worse by more than SLACK, kind by kind, with the case that moved most.

    A kind has the cases that it had: one that no longer waits for the host still counts there.
    """
    current = {each.key: each for each in now}
    return [
        line
        for source in SOURCES
        for (kind, value), before in by_kind(stored.cases, source).items()
        if (after := [current[each.key] for each in before if each.key in current])
        for line in _worse(
            group(source, kind, value, before), group(source, kind, value, after), before, after
        )
    ]


def _worse(
    old: Group, new: Group, before: Sequence[Replayed], after: Sequence[Replayed]
) -> list[str]:
    was = {each.key: each for each in before}
    left = [each for each in after if was[each.key].held(old.source) > each.held(old.source)]
    figures = (
        ("median error", old.median, new.median, after),
        ("error of nine in ten", old.p90, new.p90, after),
        ("share outside the interval", 1 - old.coverage, 1 - new.coverage, left),
    )
    return [
        f"{old.source}, {old.kind} {old.value}: {name} {stood:.2%}, now {stands:.2%}; "
        + _moved_most(old.source, was, among)
        for name, stood, stands, among in figures
        if stands - stood > SLACK
    ]


def _moved_most(source: Source, was: dict[str, Replayed], among: Sequence[Replayed]) -> str:
    def growth(each: Replayed) -> float:
        return abs(each.error(source)) - abs(was[each.key].error(source))

    most = max(among, key=growth)
    stood, stands = was[most.key].error(source), most.error(source)
    return f"most moved {most.label}, from {stood:+.1%} to {stands:+.1%}"
