"""Study `flash`: our attention against every other, in FLOP/s and under the roof.

One causal head over lengths and head dims, forward, backward and both together.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product, takewhile
from typing import NamedTuple, get_args

import msgspec

from peakward.prediction.flops import step_flops
from peakward.records.case import OperatorPass
from peakward.records.measurement import Interval
from peakward.records.study import Conclusion
from peakward.studies import values
from peakward.studies.attention_arms import (
    FLASH,
    FLASH_HOPPER,
    SDPA,
    Head,
    every_arm,
    head,
    products,
    seq_len,
    studied,
)
from peakward.studies.claims import AnyRow, Sentence, gains, longer, not_timed, rank, sources
from peakward.studies.engine import Row, Study, View
from peakward.studies.readings import processes
from peakward.studies.setting import Setting
from peakward.studies.values import REASON, STATUS, TIME, VERDICT, Value, plot, table, text

BATCH_SIZE = 1
HEAD_DIMS = {"small": (64,), "corners": (64, 128), "full": (16, 32, 64, 128)}
SEQ_LENS = {
    "small": (128, 1024),
    "corners": (2**7, 2**12, 2**16),
    "full": tuple(2**power for power in range(7, 17)),
}
PASSES: tuple[OperatorPass, ...] = get_args(OperatorPass)
FORWARDS: dict[OperatorPass, float] = {"forward": 1.0, "backward": 2.5, "forward_backward": 3.5}
"""FLOPs of a pass over the forward's, as FlashAttention is rated (Dao 2023, section 4.1)."""
MOSTLY = 0.5
"""Host's share of a time, from here on the row is called bound by its host. In one head of 4,096 tokens,
bf16, head dim 64, forward, 3 µs are products on an H100; calls took 41 µs (sdpa) to 405 µs (flash-hopper) of
its host."""
PARTLY, LITTLE = 0.25, 0.05
"""So is one with this share, or whose share is not known, that does not reach so much of the roof: launches
vary too much from case to case for the share alone (1.27 ms and 0.61 ms of one call on one host)."""
HeadRow = Row[Head]


def points(setting: Setting) -> Iterator[Head]:
    """Precision × head dim × pass × length × way to compute it."""
    scope = setting.scope
    # What a run that is ended early should have: bf16 before fp32.
    for precision, head_dim, pass_, length, arm in product(
        reversed(studied(setting)),
        HEAD_DIMS[scope.name],
        PASSES,
        scope.seq_lens or SEQ_LENS[scope.name],
        (arm for arm in every_arm(setting) if arm.precision is None),
    ):
        yield head(
            arm,
            precision,
            pass_,
            setting,
            batch_size=scope.batch_size or BATCH_SIZE,
            seq_len=length,
            head_dim=head_dim,
        )


def place(row: HeadRow) -> str:
    """For a title or a sentence: "bf16, head dim 64, forward"."""
    return f"{row.point.where}, {row.point.case.pass_}"


def flops(row: HeadRow) -> float:
    """By `FORWARDS`."""
    case = row.point.case
    return (step_flops(msgspec.structs.replace(case, pass_="forward")) or 0.0) * FORWARDS[
        case.pass_
    ]


def rate(row: HeadRow) -> Interval | None:
    """FLOP/s; None where it has no time."""
    found, work = row.time, flops(row)
    if found is None:
        return None
    ends = {"estimate": work / found.estimate, "low": work / found.high, "high": work / found.low}
    return Interval(**ends, level=found.level)


def roof(row: HeadRow) -> float | None:
    """The matmul rate of the type that its products run as, over how many of them one product takes. None
    where that type is not known, or the calibration has no rate of it."""
    how, of = products(row.point.case), row.calibration
    if how is None or of is None:
        return None
    found = of.matmul_flops_per_s(how.compute_type)
    return None if found is None else found / how.n_parts


def roof_share(row: HeadRow) -> float | None:
    """The rate's share of the roof; None where one of the two is unknown."""
    found, of = rate(row), roof(row)
    return None if found is None or of is None else found.estimate / of


def subject(view: View[Head]) -> tuple[str, ...]:
    """Whom the study is about: our kernels; where neither can run, what torch chooses."""
    ran = {row.name for row in view.rows if row.point.absent is None}
    return tuple(arm.name for arm in (FLASH, FLASH_HOPPER) if arm.name in ran) or (SDPA.name,)


def curves(view: View[Head]) -> tuple[tuple[HeadRow, ...], ...]:
    """By arm, type, head dim and pass, what a GPU has a time of, the shortest first."""
    timed = [row for row in view.rows if row.point.case.device == "cuda" and row.time]
    timed.sort(key=seq_len)
    return values.groups(timed, lambda row: (row.name, place(row)))


def host_bound(view: View[Head]) -> list[HeadRow]:
    """The rows whose time is mostly their host's: those compare launches of this host, not kernels."""
    return [row for curve in curves(view) for row in curve if _is_bound(row, _share(row, curve))]


def _share(row: HeadRow, curve: Sequence[HeadRow]) -> float | None:
    """The host's share of a time: what the shortest takes beyond its work, over it. None of a call that was
    timed at one length.

    A host launches a call in the same time whatever its length; the work of the shortest is at most what
    its FLOPs take at the rate of the longest.
    """
    shortest, longest = curve[0], curve[-1]
    if len(curve) == 1 or not (row.median_s and shortest.median_s and longest.median_s):
        return None
    work_s = longest.median_s * flops(shortest) / flops(longest)
    return min(1.0, max(0.0, shortest.median_s - work_s) / row.median_s)


def _is_bound(row: HeadRow, share: float | None) -> bool:
    reached = roof_share(row)
    slow = reached is not None and reached < LITTLE
    return slow if share is None else share > MOSTLY or (slow and share > PARTLY)


def not_bound(view: View[Head]) -> list[HeadRow]:
    """The rows that sentences may compare."""
    bound = host_bound(view)
    return [row for row in view.rows if row not in bound]


def best(view: View[Head]) -> Iterator[Conclusion]:
    """The highest rate that each of ours reaches, by precision, head dim and pass, where it is more than a
    host's launches."""
    for arm in subject(view):
        own = (row for row in not_bound(view) if row.name == arm and row.median_s)
        for group in values.groups(own, place):
            yield from _best(max(group, key=lambda row: flops(row) / (row.median_s or math.inf)))


def _best(row: HeadRow) -> Iterator[Conclusion]:
    told, source = Sentence(), row.measurement
    text = (
        f"In {place(row)}, {row.name} reaches most at length "
        f"{told('length', seq_len(row), 'count', source)}: "
        f"{told.interval('rate', rate(row), 'flops_per_s', source)}{processes(source)}"
    )
    share, how = roof_share(row), products(row.point.case)
    if share is not None and how is not None:
        part = told("share of the roof", share, "share", source, row.calibration)
        text += f", {part} of the {how.compute_type} matmul roof"
        text += f" for a product made of {how.n_parts}" if how.n_parts > 1 else ""
    yield from told.end(f"{text}.")


def against(view: View[Head]) -> Iterator[Conclusion]:
    """Says what each of our kernels gains over every rival, over all sizes and passes at which both ran
    and neither mostly waited for its host."""
    groups = values.groups(not_bound(view), lambda row: (place(row), seq_len(row)))
    by_size = [{row.name: row for row in group} for group in groups]
    names = dict.fromkeys(row.name for row in view.rows)
    for ours, rival in product(subject(view), names):
        both = [(of[ours], of[rival]) for of in by_size if ours in of and rival in of]
        if rival not in subject(view):
            held = (msgspec.structs.replace(row, base=of.measurement) for row, of in both)
            yield from gains(held, ours, rival)


class Duel(NamedTuple):
    """The fastest of ours against the fastest rival at one length."""

    ours: AnyRow
    rival: AnyRow
    speed: Interval
    """The speed of ours over the rival's: ours is faster above 1."""
    untimed: tuple[AnyRow, ...]
    """The rivals that have no time at this length."""


def crossovers(view: View[Head]) -> Iterator[Conclusion]:
    """From which length on one of ours is the fastest, by precision, head dim and pass; lengths at which
    one of the two mostly waited for its host are left out."""
    bound = host_bound(view)
    for group in values.groups(view.rows, place):
        fought = []
        for of in sorted(values.groups(group, seq_len), key=lambda of: seq_len(of[0])):
            mine = rank(row for row in of if row.name in subject(view))
            theirs = rank(row for row in of if row.name not in subject(view))
            if not mine.timed or not theirs.timed:
                continue
            ours, rival = mine.timed[0], theirs.timed[0]
            speed = longer(ours, rival)
            if speed is not None and ours not in bound and rival not in bound:
                fought.append(Duel(ours, rival, speed, theirs.untimed))
        if fought:
            n_lengths = len({seq_len(row) for row in group})
            yield from _crossover(place(group[0]), fought, n_lengths)


def _crossover(where: str, fought: Sequence[Duel], n_lengths: int) -> Iterator[Conclusion]:
    won = tuple(takewhile(lambda duel: duel.speed.low > 1, reversed(fought)))
    told, last = Sentence(), fought[-1]
    both = (last.ours.measurement, last.rival.measurement)

    def length(duel: Duel) -> str:
        return told("length", seq_len(duel.ours), "count", *sources((duel.ours, duel.rival)))

    at = length(last)
    ratio = told.interval("speed over the fastest other", last.speed, "ratio", *both)
    said = f"{last.ours.name} runs at {ratio} the speed of {last.rival.name}, by intervals{processes(*both)}"
    if not won:
        text = "not" if last.speed.high < 1 else "not measurably"
        yield from told.end(f"In {where}, {text} the fastest at length {at}: {said}.")
        return
    untimed = [each for duel in won for each in duel.untimed]
    title = "the fastest of those timed" if untimed else "the fastest"
    since = f"at length {at}"
    if len(won) > 1:
        said = f"at length {at} {said}"
        first = length(won[-1])
        since = "at every length" if len(won) == n_lengths else f"from length {first} on"
    elif len(fought) > 1:
        since += " alone"
    yield from told.end(f"In {where}, {title} {since}: {said}{not_timed(untimed)}.")


def launches(view: View[Head]) -> Iterator[Conclusion]:
    """How many times are their host's, and of what lengths; nothing where there are none, as on a CPU."""
    bound, timed = host_bound(view), [row for curve in curves(view) for row in curve]
    if bound:
        told, behind = Sentence(), sources(bound)
        n = told.count("times of the host", len(bound), behind)
        of = told.count("times", len(timed), sources(timed))
        longest = told("length", max(map(seq_len, bound)), "count", *behind)
        yield from told.end(
            f"In {n} of {of} times, of lengths up to {longest}, the GPU mostly waits for its host: they are "
            "launches of this host, which differ from host to host, and no sentence here compares them."
        )


def notes(view: View[Head]) -> Iterator[str]:
    """Yields notes that say which FLOPs the rates count, and what the roof is."""
    yield (
        "FLOPs are those that FlashAttention is rated by: causal forward 2·S²·d for the two "
        "products, half of them masked; backward 2.5 times that, for it makes the scores again and "
        "has five products. So they count a recomputation that Peakward's model FLOPs, elsewhere, "
        "do not, and naive attention is rated by them too: a rate compares times."
    )
    text = "The roof is this device's measured square matmul rate in the type that the products run as."
    if view.on_gpu:
        text += (
            " In fp32 that is fp32 itself for naive, sdpa-math and flex; a sixth of bf16's for flash, "
            "which makes a product of six in bf16; a third of tf32's for sdpa-efficient. For sdpa and "
            "compiled, of which no record says what kernel ran, the share is not computed."
        )
    yield text
    yield from _over_roof(view)
    yield (
        "Backward is measured by itself, through one graph that is kept. Compiled is torch.compile "
        "of the naive one; sdpa is the backend that torch chooses, flex torch's FlexAttention with "
        "the causal block mask, flash and flash-hopper are Peakward's kernels."
    )
    if view.on_gpu:
        yield (
            "The host's share of a time on a GPU is what the same call takes at the shortest length beyond "
            "its work, over it. A time is the host's where that is more than half, or more than a quarter "
            "while the rate is below 5% of the roof; of a call that was timed at one length alone the rate "
            "tells."
        )
    else:
        yield "Our kernels do not run on a CPU: torch's sdpa stands in their place here."


def _over_roof(view: View[Head]) -> Iterator[str]:
    """Why a rate may lie above the roof; nothing where none does."""
    over = [row for row in view.rows if (roof_share(row) or 0.0) > 1]
    if not over or view.calibration is None:
        return
    said = [f"{len(over)} {'rates are' if len(over) > 1 else 'rate is'} above the roof."]
    doubts = [
        f"When the roof was measured, {doubt}: it may be too low."
        for doubt in view.calibration.doubts
    ]
    said += doubts or ["The square product of the calibration was not this device's best."]
    yield " ".join(said)


STUDY = Study(
    title="How near to the roof is our attention, and each of its rivals?",
    points=points,
    needs_ceilings=True,
    tables=(
        table(
            lambda row: f"Attention, {place(row)}",
            (
                Value("length", "count", seq_len),
                text("attention", lambda row: row.name),
                STATUS,
                TIME,
                Value("rate", "flops_per_s", rate),
                Value("share of the roof", "share", roof_share),
                VERDICT,
                REASON,
            ),
            each=place,
        ),
    ),
    plots=(
        plot(
            lambda row: f"Rate by length, {place(row)}",
            Value("sequence length", "count", seq_len),
            Value("FLOP/s", "flops_per_s", rate),
            lambda row: row.name,
            each=place,
            log="x",
        ),
    ),
    claims=(best, against, crossovers, launches),
    notes=notes,
)
