"""What an interval says of a candidate: no verdict and no sentence contradicts its numbers."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.levers.catalogue import lever, pull
from peakward.records.case import ModelCase, Workload
from peakward.records.measurement import Interval
from peakward.records.model_shape import ModelShape
from peakward.records.trial import Bound, NumericsVerdict, Pair, Trial
from peakward.report.format import format_spread
from peakward.stats.pairs import inverted
from peakward.stats.verdict import judged, read, reread

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


def interval(low, estimate, high):
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
    assert read(interval(low, estimate, high)) == (verdict, words)


def test_energy_has_words_of_its_own():
    assert read(interval(0.8, 0.9, 0.95), judged_by="energy").words.startswith("less energy")
    assert read(interval(1.1, 1.2, 1.3), judged_by="energy").words.startswith("more energy")


near = st.sampled_from([0.98 + i / 2000 for i in range(81)])
ends = st.one_of(st.floats(0.2, 5), near).map(lambda ratio: round(ratio, 4))
ratios = st.tuples(ends, ends, ends).map(lambda three: interval(*sorted(three)))
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
        interval(2.415, 2.59, 2.61), stage="screened", n_pairs=1, doubts=None, reason=reason
    )
    again = reread(old)
    assert again.verdict == "rejected"
    assert again.reason.startswith("slower in the whole interval when screened")
    assert ("not steady" in again.reason) == ("not steady" in reason)


def test_the_doubts_of_a_trial_of_before_are_still_told():
    reason = (
        "faster in the interval (a pair in each of 3 processes); other work took 9% of the cores"
    )
    again = reread(trial(interval(0.5, 0.6, 0.7), doubts=None, verdict="kept", reason=reason))
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
    old = trial(interval(0.5, 0.6, 0.7), **{"doubts": None, "reason": "as stored"})
    old = msgspec.structs.replace(old, **fields)
    assert reread(old) is old
