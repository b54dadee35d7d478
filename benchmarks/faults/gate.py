"""Whether the rules have become worse than the stored results say."""

from pathlib import Path

import msgspec

from faults.judge import alarms
from faults.records import Planted, Verdict
from stored_results import index


def newest(folder: Path) -> dict[str, Planted]:
    """The latest stored results of each device, by its key."""
    return {
        device: msgspec.json.decode(each.read(), type=Planted)
        for device, each in index(folder).newest("planted-faults").items()
    }


def regressions(stored: Planted, now: tuple[Verdict, ...]) -> list[str]:
    """Planted faults that were found, or found first, and no longer are; alarms that are new."""
    current = {each.label: each for each in now}
    lines = []
    for before in stored.verdicts:
        after = current[before.label]
        if before.rank is not None and after.rank is None:
            lines.append(f"{before.label}: {before.planted} is no longer found")
        elif before.rank == 1 and after.rank != 1:
            lines.append(f"{before.label}: {before.planted} is ranked {after.rank}, was first")
    was = alarms(stored.verdicts)
    for label, codes in alarms(now).items():
        new = [each for each in codes if each not in was.get(label, ())]
        if new:
            lines.append(f"{label}: {', '.join(new)} found where no fault is")
    return lines
