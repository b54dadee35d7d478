"""From the folder of results to the findings."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from accuracy import measured
from accuracy.groups import FAMILIES, nine_in_ten
from accuracy.replay import sites
from peaks.records import Group, MemoryAccuracy, Peak, Verdict, VerdictGroup
from peaks.replay import Replay, replay

BAND = 0.03
"""Of a limit, on both sides: so near to it no verdict counts."""


def replayed(folder: Path) -> Replay:
    """The stored cases of every GPU that has been calibrated."""
    studies = measured.studies(folder)
    return replay(each for device in sites(folder) for each in measured.stored(studies, device))


def judge(folder: Path) -> MemoryAccuracy:
    """Everything that the report says."""
    found = replayed(folder)
    studies, devices = measured.studies(folder), tuple(sites(folder))
    stored = [each for device in devices for each in measured.stored(studies, device)]
    versions = {each.measurement.environment.torch for each in stored}
    return MemoryAccuracy(
        devices=devices,
        torch=tuple(sorted(each for each in versions if each)),
        peaks=tuple(found.peaks),
        groups=tuple(groups(found.peaks)),
        verdicts=tuple(found.verdicts),
        verdict_groups=tuple(verdict_groups(found.verdicts)),
        refused=tuple(found.refused),
    )


def kinds(peak: Peak) -> dict[str, str]:
    """What the case is of each kind."""
    configuration, name = peak.case.configuration, peak.case.model.name
    captured = ", captured" if configuration.cuda_graphs else ""
    return {
        "all": "all",
        "execution": ("eager" if configuration.compile == "none" else "compiled") + captured,
        "device": peak.device,
        "peak in": peak.phase,
        "pass": peak.case.workload.pass_,
        "precision": configuration.precision,
        "attention": configuration.attention,
        "checkpointing": configuration.checkpointing,
        "family": next((FAMILIES[each] for each in FAMILIES if name.startswith(each)), "own sizes"),
        "model": name,
    }


def by_kind(peaks: Sequence[Peak]) -> dict[tuple[str, str], list[Peak]]:
    """The cases of each value of each kind: kinds as `kinds` has them, values by name."""
    found: dict[tuple[str, str], list[Peak]] = {}
    for each in peaks:
        for key in kinds(each).items():
            found.setdefault(key, []).append(each)
    order = list(kinds(peaks[0])) if peaks else []
    return {key: found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))}


def groups(peaks: Sequence[Peak]) -> list[Group]:
    """Kind by kind."""
    return [group(*key, members) for key, members in by_kind(peaks).items()]


def group(kind: str, value: str, peaks: Sequence[Peak]) -> Group:
    """The errors of some cases."""
    sizes = [abs(each.error) for each in peaks]
    reserved = [abs(each.reserved_error) for each in peaks if each.reserved_error is not None]
    return Group(
        kind=kind,
        value=value,
        n=len(peaks),
        median=median(sizes),
        p90=nine_in_ten(sizes),
        worst=max(sizes),
        bias=median(each.error for each in peaks),
        reserved_median=median(reserved) if reserved else None,
        reserved_worst=max(reserved) if reserved else None,
    )


def verdict_groups(verdicts: Sequence[Verdict]) -> list[VerdictGroup]:
    """By device and limit, the card's own last."""
    found: dict[tuple[str, bool, int], list[Verdict]] = {}
    for each in verdicts:
        key = (each.device, not each.own_limit, each.limit_bytes)
        found.setdefault(key, []).append(each)
    return [
        _verdict_group(device, is_card, limit_bytes, members)
        for (device, is_card, limit_bytes), members in sorted(found.items())
    ]


def _verdict_group(
    device: str, is_card: bool, limit_bytes: int, verdicts: Sequence[Verdict]
) -> VerdictGroup:
    told = [each.right for each in verdicts if abs(each.distance) > BAND]
    limit = f"{limit_bytes / 2**30:.4g} GiB"
    return VerdictGroup(
        device=device,
        limit=f"the card's, {limit}" if is_card else limit,
        n=len(verdicts),
        near=len(verdicts) - len(told),
        right=told.count(True),
        wrong=told.count(False),
        untold=told.count(None),
    )
