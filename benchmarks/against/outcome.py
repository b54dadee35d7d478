"""What `against_transformers` found, as records and as Markdown."""

import os
from pathlib import Path
from statistics import median

import msgspec

from against.interleaved import Turn
from against.peer import Setting
from peakward.records.case import ModelCase, Precision
from peakward.records.lever import Pair
from peakward.records.measurement import Environment, Interval

GIB = 2**30


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """Losses of both on equal weights, by precision: ours, theirs."""

    losses: dict[str, tuple[float, float]]


class Solo(msgspec.Struct, frozen=True, kw_only=True):
    """An arm alone on the device; bytes are None on a CPU."""

    step_s: float
    start_s: float
    """Building, compiling, capturing and the first steps."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None


class TriedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The peer under one setting, or why there is no figure."""

    setting: Setting
    solo: Solo | None = None
    reason: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One size, workload and pass."""

    name: str
    case: ModelCase
    """Ours, with the configuration that ran."""
    flops_per_step: float
    """Model FLOPs, causal attention counted half."""
    guard: Guard
    peer_settings: tuple[TriedSetting, ...]
    peer: Setting
    peer_precision: Precision | None = None
    """None in results that are older than this field: ours."""
    peer_solo: Solo
    ours_solo: Solo
    resident: str
    """both, or one at a time."""
    turns: tuple[Turn, ...]
    """A is the peer, B is ours."""
    pairs: tuple[Pair, ...]
    """Base is the peer, candidate is ours."""
    time_ratio: Interval
    """Ours over theirs."""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A part without a figure."""

    name: str
    reason: str

    @classmethod
    def of(cls, case: ModelCase, reason: str) -> "Failed":
        """The case's part."""
        return cls(name=part_name(case), reason=reason)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    environment: Environment
    transformers: str
    torchao: str | None = None
    """None where it is not installed, and in results that are older than this field."""
    started_at: str
    wall_s: float
    arguments: list[str]
    outcomes: tuple[Outcome, ...] = ()
    failures: tuple[Failed, ...] = ()

    def extended(self, ended: Outcome | Failed, wall_s: float) -> "Report":
        """With one part more."""
        field = "failures" if isinstance(ended, Failed) else "outcomes"
        return msgspec.structs.replace(
            self, wall_s=wall_s, **{field: (*getattr(self, field), ended)}
        )


def part_name(case: ModelCase) -> str:
    """size:batch×length:pass, as the script's --only takes it."""
    work = case.workload
    return f"{case.model.name}:{work.batch_size}x{work.seq_len}:{work.pass_}"


def first_line(error: Exception) -> str:
    """Of its message, with its kind."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def write(report: Report, path: Path | None) -> None:
    """The whole file or nothing of it."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".half")
    half.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    os.replace(half, path)  # noqa: PTH105


def line(ended: Outcome | Failed) -> str:
    """Of one part, as it ends."""
    if isinstance(ended, Failed):
        return f"{ended.name}: {ended.reason}"
    return f"{ended.name}: {_inverse(ended.time_ratio)} their best ({ended.peer.name})"


def _inverse(ratio: Interval) -> str:
    return f"{1 / ratio.estimate:.3f}× ({1 / ratio.high:.3f} to {1 / ratio.low:.3f})"


def _step_s(outcome: Outcome, arm: str) -> float:
    return median(turn.median_s for turn in outcome.turns if turn.arm == arm)


def _clock(outcome: Outcome, arm: str) -> str:
    clocks = [
        turn.telemetry.sm_clock_mhz
        for turn in outcome.turns
        if turn.arm == arm
        and turn.telemetry is not None
        and turn.telemetry.sm_clock_mhz is not None
    ]
    if not clocks:
        return "–"
    return f"{median(c.estimate for c in clocks):.0f} / {min(c.low for c in clocks):.0f}"


def _gib(n_bytes: int | None) -> str:
    return "–" if n_bytes is None else f"{n_bytes / GIB:.1f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _arm_rows(outcome: Outcome) -> list[str]:
    tokens = outcome.case.workload.tokens_per_step
    rows = []
    for arm, label, solo in (
        ("B", "Peakward", outcome.ours_solo),
        ("A", f"transformers: {outcome.peer.name}", outcome.peer_solo),
    ):
        step_s = _step_s(outcome, arm)
        rows.append(
            _row(
                outcome.name,
                label,
                f"{step_s * 1e3:.2f}",
                f"{tokens / step_s:,.0f}",
                f"{outcome.flops_per_step / step_s / 1e12:.1f}",
                _gib(solo.peak_allocated_bytes),
                f"{solo.start_s:.0f}",
                _clock(outcome, arm),
                _inverse(outcome.time_ratio) if arm == "B" else "1",
            )
        )
    return rows


def _setting_rows(outcome: Outcome) -> list[str]:
    tokens = outcome.case.workload.tokens_per_step
    return [
        _row(outcome.name, each.setting.name, each.reason or "", "", "", "")
        if each.solo is None
        else _row(
            outcome.name,
            each.setting.name,
            f"{each.solo.step_s * 1e3:.2f}",
            f"{tokens / each.solo.step_s:,.0f}",
            _gib(each.solo.peak_allocated_bytes),
            f"{each.solo.start_s:.0f}",
        )
        for each in outcome.peer_settings
    ]


def markdown(report: Report) -> str:
    """The tables."""
    where = report.environment
    torchao = "" if report.torchao is None else f"torchao {report.torchao}, "
    versions = (
        f"torch {where.torch}, transformers {report.transformers}, {torchao}driver {where.driver}"
    )
    lines = [
        f"{where.device_name}, {versions}; {report.started_at}, {report.wall_s:.0f} s.",
        "",
        _row(
            "part",
            "arm",
            "step ms",
            "tok/s",
            "TFLOP/s",
            "peak GiB",
            "start s",
            "SM MHz median / lowest",
            "speed over theirs (95%)",
        ),
        _row(*["-"] * 9),
        *(row for each in report.outcomes for row in _arm_rows(each)),
        "",
        "transformers, every setting, alone on the device:",
        "",
        _row("part", "setting", "step ms", "tok/s", "peak GiB", "start s"),
        _row(*["-"] * 6),
        *(row for each in report.outcomes for row in _setting_rows(each)),
    ]
    lines += [f"\n{each.name}: {each.reason}" for each in report.failures]
    return "\n".join(lines)
