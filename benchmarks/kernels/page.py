"""The outcomes as Markdown: a table an operator."""

from collections.abc import Sequence
from itertools import groupby

from kernels.contest import OURS
from kernels.results import Arm, Outcome, Report


def markdown(report: Report) -> str:
    """What an engineer would forward."""
    clock = ""
    if report.clock_hz is not None:
        least, most = (each / 1e6 for each in report.clock_hz)
        clock = f"multiprocessor clock {least:.0f}–{most:.0f} MHz; "
    head = (
        f"# Kernels on {report.device}\n\n"
        f"driver {report.driver}, torch {report.torch}, triton {report.triton}, cuDNN {report.cudnn}; "
        f"{clock}copy {report.copy_bytes_per_s / 1e9:,.0f} GB/s\n\n"
        f"Times are medians of {report.n_rounds} rounds of {report.n_calls} calls each, in turns, from a "
        "cold L2. *Against the best* is the fastest peer's time over ours, with its 95% interval over "
        "rounds: above 1 ours is faster. *Of a copy* is the time of a copy that moves as many bytes, over "
        "ours; *of a read*, where next to nothing is written, that of a kernel that reads as many.\n"
    )
    tables = [
        f"\n## {operator.replace('_', ' ')}\n\n{_table(list(outcomes))}"
        for operator, outcomes in groupby(report.outcomes, key=lambda each: each.operator)
    ]
    failures = [
        f"- {each.operator} {_shape(each)}: {arm.name}: {' '.join((arm.failed or '').split())}"
        for each in report.outcomes
        for arm in each.arms
        if arm.failed
    ]
    left = [f"- {each}" for each in report.left]
    return (
        head
        + "".join(tables)
        + _section("What could not compute it", failures)
        + _section("No time was left for", left)
    )


def _section(title: str, lines: Sequence[str]) -> str:
    return f"\n## {title}\n\n" + "\n".join(lines) + "\n" if lines else ""


def _shape(outcome: Outcome) -> str:
    return " ".join(f"{name} {value}" for name, value in outcome.shape.items())


def _table(outcomes: Sequence[Outcome]) -> str:
    shape = list(outcomes[0].shape)
    names = list(dict.fromkeys(arm.name for each in outcomes for arm in each.arms))
    names.sort(key=lambda name: name != OURS)
    rows = [[*shape, *names, "rate of ours", "against the best"]]
    rows += [_row(each, shape, names) for each in outcomes]
    rule = ["---"] * len(shape) + ["---:"] * (len(names) + 2)
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]]) + "\n"


def _row(outcome: Outcome, shape: Sequence[str], names: Sequence[str]) -> list[str]:
    arms = {each.name: each for each in outcome.arms}
    ratio = outcome.speed_over_best
    return [
        *(str(outcome.shape.get(each, "")) for each in shape),
        *(_time(arms.get(name)) for name in names),
        _rate(arms.get(OURS), outcome),
        f"{ratio.estimate:.3f}× ({ratio.low:.3f}–{ratio.high:.3f}) {outcome.best_peer}"
        if ratio
        else "–",
    ]


def _time(arm: Arm | None) -> str:
    if arm is None or arm.median_s is None:
        return "–"
    return (
        f"{arm.median_s * 1e3:.3f} ms" if arm.median_s >= 1e-3 else f"{arm.median_s * 1e6:.1f} µs"
    )


def _rate(arm: Arm | None, outcome: Outcome) -> str:
    if arm is None or arm.median_s is None:
        return "–"
    if arm.flops_per_s is not None:
        return f"{arm.flops_per_s / 1e12:.0f} TFLOP/s"
    if arm.bytes_per_s is not None:
        share = f" ({outcome.copy_s / arm.median_s:.0%} of a copy)" if outcome.copy_s else ""
        share = f" ({outcome.read_s / arm.median_s:.0%} of a read)" if outcome.read_s else share
        return f"{arm.bytes_per_s / 1e9:,.0f} GB/s{share}"
    return "–"
