"""What `benchmarks/parallel.py` found, as records and as lines."""

from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from peakward.records.lever import Pair
from peakward.records.measurement import Environment, Interval
from peakward.records.parallel import ArmRun, LinkCalibration, RankUse
from peakward.stats.pairs import ratio_interval

GIB = 2**30


class Solo(msgspec.Struct, frozen=True, kw_only=True):
    """An arm by itself, over all of its ranks."""

    arm: str
    failed: str | None = None
    step_s: float | None = None
    """The median of the slowest rank."""
    loss: float | None = None
    uses: tuple[RankUse, ...] = ()
    """By rank."""
    sm_clock_mhz: tuple[float | None, ...] = ()
    power_w: tuple[float | None, ...] = ()


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Two arms in turns."""

    base: str
    candidate: str
    pairs: tuple[Pair, ...]
    base_s: float
    candidate_s: float
    ratio: Interval
    """The base's step over the candidate's. For a base on one GPU this is the scaling efficiency: every rank
    has the base's batch."""


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction beside what was measured; None where there is none, with the reason."""

    arm: str
    step_s: float | None = None
    measured_step_s: float | None = None
    peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    reason: str | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was asked for."""

    name: str
    wall_s: float = 0.0
    failed: str | None = None
    links: LinkCalibration | None = None
    solos: tuple[Solo, ...] = ()
    compared: tuple[Compared, ...] = ()
    foreseen: tuple[Foreseen, ...] = ()
    lost: dict[str, Any] = msgspec.field(default_factory=dict)
    """How a job with a planted loss ended: the rank, the cause and the seconds."""
    findings: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """By arm: code and cause of what the traces of its ranks tell."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All items so far."""

    environment: Environment
    n_gpus: int
    arguments: tuple[str, ...]
    started_at: str
    items: tuple[Item, ...] = ()

    def extended(self, item: Item) -> "Report":
        """With one more; an older one of that name goes."""
        kept = tuple(each for each in self.items if each.name != item.name)
        return msgspec.structs.replace(self, items=(*kept, item))


def write(report: Report, path: Path) -> None:
    """Replaces the file at once."""
    scratch = path.with_name(path.name + ".part")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    scratch.replace(path)


def solos_of(by_rank: list[list[ArmRun]]) -> tuple[Solo, ...]:
    """Each arm that was timed by itself."""
    found: dict[str, list[ArmRun]] = {}
    for runs in by_rank:
        for each in runs:
            if each.is_solo or each.failed:
                found.setdefault(each.arm, []).append(each)
    return tuple(_solo(name, runs) for name, runs in found.items())


def _solo(name: str, runs: list[ArmRun]) -> Solo:
    failed = next((each.failed for each in runs if each.failed), None)
    timed = [each for each in runs if each.steps_s]
    if failed or not timed:
        return Solo(arm=name, failed=failed or "no rank ran it")
    return Solo(
        arm=name,
        step_s=max(median(each.steps_s) for each in timed),
        loss=next((each.loss for each in timed if each.loss is not None), None),
        uses=tuple(each.use for each in timed),
        sm_clock_mhz=tuple(each.sm_clock_mhz for each in timed),
        power_w=tuple(each.power_w for each in timed),
    )


def compared_of(by_rank: list[list[ArmRun]]) -> tuple[Compared, ...]:
    """The arms that were in turns, each against the first of them."""
    turns = dict.fromkeys(each.turns for runs in by_rank for each in runs if each.turns)
    return tuple(
        found
        for names in turns
        for other in (names or ())[1:]
        if names and (found := _compared(by_rank, names, other))
    )


def _compared(
    by_rank: list[list[ArmRun]], turns: tuple[str, ...], candidate: str
) -> Compared | None:
    base = turns[0]
    slowest = {}
    for arm in (base, candidate):
        own = [
            [median(each.steps_s) for each in runs if each.turns == turns and each.arm == arm]
            for runs in by_rank
        ]
        slowest[arm] = [max(each) for each in zip(*(each for each in own if each), strict=True)]
    if len(slowest[base]) != len(slowest[candidate]) or len(slowest[base]) < 2:
        return None
    pairs = tuple(
        Pair(process=0, base_s=one, candidate_s=other)
        for one, other in zip(slowest[base], slowest[candidate], strict=True)
    )
    ratio = ratio_interval(pairs)
    inverse = Interval(
        estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low, level=ratio.level
    )
    return Compared(
        base=base,
        candidate=candidate,
        pairs=pairs,
        base_s=median(slowest[base]),
        candidate_s=median(slowest[candidate]),
        ratio=inverse,
    )


def lines(item: Item) -> list[str]:
    """The item for a terminal."""
    out = [f"== {item.name} ({item.wall_s:.0f} s)" + (f": {item.failed}" if item.failed else "")]
    if item.links is not None:
        for fit in item.links.fits:
            rates = ", ".join(
                f"{each.n_bytes / 1e6:g}: {each.bus_bytes_per_s / 1e9:.1f}"
                for each in item.links.times
                if each.collective == fit.collective
            )
            out.append(
                f"{fit.collective}: bus GB/s by MB {rates}; fit {fit.latency_s * 1e6:.0f} us + "
                f"{fit.bus_bytes_per_s / 1e9:.0f} GB/s (worst {fit.worst_error:.0%})"
            )
    out += [_solo_line(each) for each in item.solos]
    for each in item.compared:
        out.append(
            f"{each.base} {each.base_s * 1e3:.2f} ms over {each.candidate} "
            f"{each.candidate_s * 1e3:.2f} ms = {each.ratio.estimate:.4f} "
            f"[{each.ratio.low:.4f}, {each.ratio.high:.4f}] of {len(each.pairs)} pairs"
        )
    for seen in item.foreseen:
        out.append(_foreseen_line(seen))
    out += [f"lost, {how}: {told}" for how, told in item.lost.items()]
    out += [f"{arm}: {'; '.join(told) or 'no finding'}" for arm, told in item.findings.items()]
    return out


def _solo_line(each: Solo) -> str:
    if each.step_s is None:
        return f"{each.arm}: {each.failed}"
    peaks = [f"{use.peak_bytes / GIB:.2f}" for use in each.uses if use.peak_bytes is not None]
    held = max((use.held_bytes for use in each.uses), key=lambda held: sum(held.values()))
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in held.items())
    clocks = [f"{mhz:.0f}" for mhz in each.sm_clock_mhz if mhz is not None]
    power = [f"{watts:.0f}" for watts in each.power_w if watts is not None]
    told = [f"; rank {at} sends {_sent(use)}" for at, use in enumerate(each.uses) if use.sent]
    return (
        f"{each.arm}: {each.step_s * 1e3:.2f} ms, loss {each.loss}, peak GiB {' '.join(peaks)} "
        f"(held {parts}), MHz {' '.join(clocks)}, W {' '.join(power)}" + "".join(told)
    )


def _sent(use: RankUse) -> str:
    text = ", ".join(
        f"{each.collective} {each.n_bytes / 1e6:.0f} MB in {each.n_calls}" for each in use.sent
    )
    if use.communication_s is None or use.exposed_s is None:
        return text
    return f"{text}, {use.communication_s * 1e3:.2f} ms of which {use.exposed_s * 1e3:.2f} exposed"


def _foreseen_line(seen: Foreseen) -> str:
    text = f"predicted {seen.arm}:"
    if seen.step_s is not None and seen.measured_step_s is not None:
        error = seen.step_s / seen.measured_step_s - 1
        text += f" step {seen.step_s * 1e3:.2f} ms ({error:+.1%})"
    if seen.peak_bytes is not None and seen.measured_peak_bytes is not None:
        error = seen.peak_bytes / seen.measured_peak_bytes - 1
        text += f" peak {seen.peak_bytes / GIB:.2f} GiB ({error:+.1%})"
    return text + (f" {seen.reason}" if seen.reason else "")
