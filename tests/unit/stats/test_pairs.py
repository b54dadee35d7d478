"""The interval of a paired ratio, and what is concluded from it."""

import math
import random
import re
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.levers.catalogue import lever, pull
from peakward.records.case import ModelCase, Workload
from peakward.records.lever import Bound, NumericsVerdict, Pair, Trial
from peakward.records.measurement import Interval
from peakward.records.model_shape import ModelShape
from peakward.report.format import format_spread
from peakward.stats.pairs import (
    energy_interval,
    inverted,
    judge_change,
    judged,
    median_ratio,
    ratio_interval,
    read,
    reread,
)


def pairs_of(*ratios: float, base_s: float = 0.01) -> list[Pair]:
    return [Pair(process=0, base_s=base_s, candidate_s=base_s * ratio) for ratio in ratios]


def test_a_worked_example() -> None:
    """Log-ratios -0.2, -0.1, 0.0: mean -0.1, standard error 0.1/sqrt(3), t(0.975, 2) = 4.302653."""
    interval = ratio_interval(pairs_of(*(math.exp(x) for x in (-0.2, -0.1, 0.0))))
    half_width = 4.302653 * 0.1 / math.sqrt(3)
    assert interval.estimate == pytest.approx(math.exp(-0.1))
    assert interval.low == pytest.approx(math.exp(-0.1 - half_width), rel=1e-6)
    assert interval.high == pytest.approx(math.exp(-0.1 + half_width), rel=1e-6)
    assert interval.level == 0.95


def test_the_process_is_the_unit_where_there_are_several() -> None:
    """Process means of the log-ratios -0.2, -0.1, 0.0, whatever lies about them: as above."""
    logs = [(-0.25, -0.15), (-0.1, -0.1, -0.1), (-0.03, 0.03)]
    pairs = [
        Pair(process=i, base_s=0.01, candidate_s=0.01 * math.exp(x))
        for i, of_process in enumerate(logs)
        for x in of_process
    ]
    interval = ratio_interval(pairs)
    half_width = 4.302653 * 0.1 / math.sqrt(3)
    assert interval.low == pytest.approx(math.exp(-0.1 - half_width), rel=1e-6)
    assert interval.high == pytest.approx(math.exp(-0.1 + half_width), rel=1e-6)


def test_what_slows_both_arms_cancels() -> None:
    drifting = [Pair(process=0, base_s=s, candidate_s=0.8 * s) for s in (0.01, 0.02, 0.05, 0.011)]
    interval = ratio_interval(drifting)
    assert (interval.low, interval.high) == pytest.approx((0.8, 0.8))


@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=12))
def test_swapping_the_arms_inverts_the_interval(ratios: list[float]) -> None:
    forth = ratio_interval(pairs_of(*ratios))
    back = ratio_interval(pairs_of(*(1 / ratio for ratio in ratios)))
    assert forth.low <= forth.estimate <= forth.high
    assert (1 / back.high, 1 / back.estimate, 1 / back.low) == pytest.approx(
        (forth.low, forth.estimate, forth.high)
    )


def test_it_covers_the_true_ratio_as_often_as_it_says() -> None:
    draw, n_draws, true_ratio = random.Random(13), 1000, 0.9
    hits = 0
    for _ in range(n_draws):
        noisy = (true_ratio * draw.lognormvariate(0, 0.05) for _ in range(6))
        interval = ratio_interval(pairs_of(*noisy))
        hits += interval.low <= true_ratio <= interval.high
    assert abs(hits - 950) < 3.5 * math.sqrt(1000 * 0.95 * 0.05)


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_pairs_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="expected at least two pairs"):
        ratio_interval(pairs_of(*[0.9] * n))


def test_an_inverted_ratio_keeps_its_ends_in_order():
    interval = inverted(Interval(estimate=0.5, low=0.4, high=0.8))
    assert (interval.low, interval.estimate, interval.high) == (1.25, 2.0, 2.5)


def test_energy_is_compared_as_time_is_where_every_pair_has_it() -> None:
    times = [(1.0, 0.5), (1.1, 0.6), (0.9, 0.4)]
    pairs = [
        Pair(process=i, base_s=2.0, candidate_s=2.0, base_j=base, candidate_j=candidate)
        for i, (base, candidate) in enumerate(times)
    ]
    as_times = [
        Pair(process=i, base_s=base, candidate_s=candidate)
        for i, (base, candidate) in enumerate(times)
    ]
    assert energy_interval(pairs) == ratio_interval(as_times)
    assert energy_interval([*pairs, as_times[0]]) is None
    assert energy_interval(pairs[:1]) is None


PERCENT_3 = 0.03


def interval(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high)


def test_a_known_ratio_by_hand():
    before = interval(1.0, math.exp(-0.03), math.exp(0.03))
    after = interval(2.0, 2.0 * math.exp(-0.04), 2.0 * math.exp(0.04))
    ratio = median_ratio(before, after)
    # ln 2 ± √(0.04² + 0.03²) = ln 2 ± 0.05
    assert ratio.estimate == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0 * math.exp(-0.05))
    assert ratio.high == pytest.approx(2.0 * math.exp(0.05))


def test_the_limits_keep_the_skew_of_the_two_intervals():
    exact = interval(1.0, 1.0, 1.0)
    skewed = interval(1.0, 0.99, 1.5)
    assert median_ratio(exact, skewed) == interval(1.0, 0.99, 1.5)
    turned = median_ratio(skewed, exact)
    assert (turned.low, turned.high) == (pytest.approx(1 / 1.5), pytest.approx(1 / 0.99))


sides = st.tuples(
    st.floats(1e-6, 1e3), st.floats(0.0, 1.0, exclude_max=True), st.floats(0.0, 5.0)
).map(lambda t: interval(t[0], t[0] * (1 - t[1]) or 1e-12, t[0] * (1 + t[2])))


@given(sides, sides)
def test_turning_the_comparison_round_inverts_the_ratio(before, after):
    forth, back = median_ratio(before, after), median_ratio(after, before)
    assert forth.estimate == pytest.approx(1 / back.estimate)
    assert forth.low == pytest.approx(1 / back.high)
    assert forth.low <= forth.estimate * (1 + 1e-12)
    assert forth.estimate <= forth.high * (1 + 1e-12)


@given(sides, sides)
def test_the_interval_is_no_narrower_than_either_sides_own(before, after):
    ratio = median_ratio(before, after)
    for side in (before, after):
        assert ratio.high / ratio.low >= side.high / side.low * (1 - 1e-9)


def test_it_covers_the_true_ratio_about_as_often_as_its_level_says():
    draw = random.Random(7)
    hits = 0
    for _ in range(400):
        sides = []
        for scale in (1.0, 1.1):
            times = [scale * math.exp(draw.gauss(0, 0.05)) for _ in range(100)]
            centre = statistics.median(times)
            # Of a median of n lognormal values: sd = 0.05 · √(π / 2n).
            width = math.exp(1.96 * 0.05 * math.sqrt(math.pi / 200))
            sides.append(interval(centre, centre / width, centre * width))
        ratio = median_ratio(*sides)
        hits += ratio.low <= 1.1 <= ratio.high
    # 400 draws at 95%: four standard deviations are 17.
    assert 363 <= hits <= 397


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.031, 1.2, "slower"),
        (1.03, 1.2, "inconclusive"),
        (0.8, 0.97, "faster"),
        (0.8, 0.975, "inconclusive"),
        (0.98, 1.02, "same"),
        (0.99, 1.04, "inconclusive"),
        (0.5, 2.0, "inconclusive"),
    ],
)
def test_verdicts(low, high, verdict):
    assert judge_change(interval(1.0, low, high), threshold=PERCENT_3) == verdict


def test_intervals_that_cannot_be_put_together_are_refused():
    with pytest.raises(ValueError, match="one level"):
        median_ratio(interval(1, 1, 1), Interval(estimate=1, low=1, high=1, level=0.9))
    with pytest.raises(ValueError, match="positive"):
        median_ratio(interval(1, 0, 1), interval(1, 1, 1))


SHAPE = ModelShape(
    name="t",
    vocab_size=100,
    n_layers=2,
    d_model=64,
    d_ff=128,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    max_seq_len=128,
)
BASE = ModelCase(model=SHAPE, workload=Workload(batch_size=2, seq_len=16), device="cpu")
WORTH = 1 / 1.01
HOLDS = {
    r"faster in the whole interval": lambda r: r.high < 1 and r.estimate <= WORTH,
    r"slower in the whole interval": lambda r: r.low > 1,
    r"faster, but by less than 1%": lambda r: r.low > WORTH and r.high < 1,
    r"faster, but perhaps by less than 1%": lambda r: r.low <= WORTH < r.estimate and r.high < 1,
    r"no gain of 1% in the interval": lambda r: WORTH < r.low <= 1 <= r.high,
    r"the interval holds both a gain of 1% and none": lambda r: r.low <= WORTH and r.high >= 1,
}
"""Each sentence that a time may get, and the intervals of which it is true."""
VERDICTS = {
    "kept": ("faster in the whole interval",),
    "rejected": (
        "slower in the whole interval",
        "faster, but by less than 1%",
        "no gain of 1% in the interval",
    ),
    "inconclusive": (
        "faster, but perhaps by less than 1%",
        "the interval holds both a gain of 1% and none",
        "faster in the whole interval",  # of a screening, which keeps nothing
    ),
}


def interval_from(low, estimate, high):
    return Interval(low=low, estimate=estimate, high=high)


def trial(ratio, *, stage="confirmed", n_pairs=3, **fields):
    return Trial(
        id="t",
        lever="sdpa",
        base=BASE,
        candidate=pull(lever("sdpa"), BASE),
        environment_key="here",
        stage=stage,
        pairs=tuple(Pair(process=i, base_s=1.0, candidate_s=1.0) for i in range(n_pairs)),
        time_ratio=ratio,
        **{"verdict": "inconclusive", "reason": "", "doubts": ()} | fields,
    )


@pytest.mark.parametrize(
    ("low", "estimate", "high", "verdict", "words"),
    [
        (0.80, 0.85, 0.90, "kept", "faster in the whole interval"),
        (0.97, 0.98, 0.999, "kept", "faster in the whole interval"),
        (0.90, 0.99, 0.999, "kept", "faster in the whole interval"),  # exactly the threshold
        (1.01, 1.05, 1.10, "rejected", "slower in the whole interval"),
        (1.99, 2.27, 2.40, "rejected", "slower in the whole interval"),  # 0.440× (0.417–0.502×)
        (0.995, 1.0, 1.005, "rejected", "no gain of 1% in the interval"),
        (0.991, 0.995, 0.999, "rejected", "faster, but by less than 1%"),
        (0.992, 1.05, 1.20, "rejected", "no gain of 1% in the interval"),
        (0.80, 0.95, 1.10, "inconclusive", "the interval holds both a gain of 1% and none"),
        (0.917, 0.98, 1.05, "inconclusive", "the interval holds both a gain of 1% and none"),
        (0.97, 0.995, 0.999, "inconclusive", "faster, but perhaps by less than 1%"),
        (0.985, 0.995, 1.005, "inconclusive", "the interval holds both a gain of 1% and none"),
        (0.50, 1.50, 4.50, "inconclusive", "the interval holds both a gain of 1% and none"),
    ],
)
def test_the_rule(low, estimate, high, verdict, words):
    assert read(interval_from(low, estimate, high)) == (verdict, words)


def test_energy_has_words_of_its_own():
    assert read(interval_from(0.8, 0.9, 0.95), judged_by="energy").words.startswith("less energy")
    assert read(interval_from(1.1, 1.2, 1.3), judged_by="energy").words.startswith("more energy")


near = st.sampled_from([0.98 + i / 2000 for i in range(81)])
ends = st.one_of(st.floats(0.2, 5), near).map(lambda ratio: round(ratio, 4))
ratios = st.tuples(ends, ends, ends).map(lambda three: interval_from(*sorted(three)))
doubts = st.lists(st.sampled_from(["unstable times", "throttled times"]), unique=True).map(tuple)


@given(ratios, doubts, st.sampled_from(["screened", "confirmed"]))
def test_no_sentence_contradicts_its_numbers_whatever_the_times_verdict(ratio, doubted, stage):
    found = judged(trial(ratio, stage=stage, doubts=doubted))
    (words,) = (words for words in HOLDS if re.match(rf"{words}( \(| when|$)", found.reason))
    assert HOLDS[words](ratio)
    assert words in VERDICTS[found.verdict]
    assert all(each in found.reason for each in doubted)
    assert (found.verdict == "rejected") == (ratio.low > WORTH)
    assert ("not confirmed" in found.reason) == (
        stage == "screened" and words.startswith("faster in")
    )


@given(ratios)
def test_no_printed_interval_contradicts_the_sentence_beside_it(ratio):
    """A speed-up of 1.0096 printed as 1.01 would be the gain that the sentence denies."""
    low, high = re.match(
        r"\S+ \(([\d.]+)–([\d.]+)×\)", format_spread(inverted(ratio), "ratio")
    ).groups()
    words = read(ratio).words
    if words in ("slower in the whole interval", "no gain of 1% in the interval"):
        assert float(high) < 1.01
    if words.startswith("slower"):
        assert float(high) < 1
    if words.startswith("faster"):
        assert float(low) > 1
    if words.startswith("the interval holds"):
        assert float(low) <= 1
        assert float(high) >= 1.01


@given(ratios, doubts)
def test_doubts_about_the_times_change_no_verdict(ratio, doubted):
    for stage in ("screened", "confirmed"):
        plain, doubtful = (judged(trial(ratio, stage=stage, doubts=d)) for d in ((), doubted))
        assert plain.verdict == doubtful.verdict


@pytest.mark.parametrize(
    "reason",
    [
        "a gain of 1% is outside the interval, of times that are not steady",
        "no gain of 1% when screened; the interval does not rule one out",
    ],
)
def test_a_trial_of_before_that_is_2_6_times_slower_is_rejected(reason):
    """Stored by the run of 2.7B from bf16 on an H200: 0.386× (0.383–0.414×), inconclusive."""
    old = trial(
        interval_from(2.415, 2.59, 2.61), stage="screened", n_pairs=1, doubts=None, reason=reason
    )
    again = reread(old)
    assert again.verdict == "rejected"
    assert again.reason.startswith("slower in the whole interval when screened")
    assert ("not steady" in again.reason) == ("not steady" in reason)


def test_the_doubts_of_a_trial_of_before_are_still_told():
    reason = (
        "faster in the interval (a pair in each of 3 processes); other work took 9% of the cores"
    )
    again = reread(trial(interval_from(0.5, 0.6, 0.7), doubts=None, verdict="kept", reason=reason))
    assert again.verdict == "kept"
    assert again.reason == (
        "faster in the whole interval (a pair in each of 3 processes); other work took 9% of the cores"
    )


NOT_BY_THE_INTERVAL = {
    "told apart already": {"doubts": ()},
    "its numbers do not hold": {
        "numerics": NumericsVerdict(declared="exact", verdict="violated"),
        "verdict": "rejected",
    },
    "beyond its bound": {
        "bound": Bound(least_time_ratio=0.9, basis="floor", broken=True),
    },
    "needs too much memory": {"verdict": "rejected"},
    "judged by memory": {"judged_by": "memory"},
    "failed": {"status": "oom", "verdict": "rejected", "time_ratio": None},
    "refused": {"stage": "refused", "verdict": "rejected"},
}


@pytest.mark.parametrize("fields", NOT_BY_THE_INTERVAL.values(), ids=NOT_BY_THE_INTERVAL)
def test_what_the_interval_did_not_decide_stands_as_it_was_stored(fields):
    old = trial(interval_from(0.5, 0.6, 0.7), **{"doubts": None, "reason": "as stored"})
    old = msgspec.structs.replace(old, **fields)
    assert reread(old) is old
