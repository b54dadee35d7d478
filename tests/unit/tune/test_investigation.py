"""Verdicts under each objective, and what a search may not do."""

import pytest

from peakward.levers.catalogue import lever, pull
from peakward.records.lever import Bound, Pair, Trial
from peakward.records.measurement import Interval
from peakward.tune.investigation import Aim

from .world import BASE, Investigated, World, configured, name_of

FASTER_AND_LARGER = {"time": 0.8, "peaks": (100, 150)}
SLOWER_AND_SMALLER = {"time": 1.3, "peaks": (100, 60)}


def trial(time=0.8, peaks=(100, 100), energy=None, **fields):
    ratio = Interval(estimate=time, low=time * 0.99, high=time * 1.01)
    plain = {
        "stage": "confirmed",
        "verdict": "kept" if time < 0.99 else "rejected",
        "pairs": tuple(Pair(process=i, base_s=1.0, candidate_s=time) for i in range(3)),
        "time_ratio": ratio,
        "energy_ratio": energy and Interval(estimate=energy, low=energy - 0.01, high=energy + 0.01),
    }
    return Trial(
        id="t",
        lever="sdpa",
        base=BASE,
        candidate=pull(lever("sdpa"), BASE),
        environment_key="here",
        reason="as before",
        base_peak_bytes=peaks[0],
        candidate_peak_bytes=peaks[1],
        **plain | fields,
    )


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_the_time_of_a_step_is_judged_as_it_was(objective):
    for each in (trial(), trial(**SLOWER_AND_SMALLER)):
        assert Aim(objective=objective).weighed(each) is each


def test_memory_is_judged_whatever_the_time():
    seek = Aim(objective="memory")
    smaller = seek.weighed(trial(**SLOWER_AND_SMALLER))
    assert (smaller.verdict, smaller.judged_by, smaller.ratio.estimate) == ("kept", "memory", 0.6)
    assert smaller.reason == "0.600× the base's peak memory"
    assert seek.weighed(trial(**FASTER_AND_LARGER)).verdict == "rejected"


def test_a_screening_keeps_nothing_and_drops_what_does_not_save():
    seek = Aim(objective="memory")
    assert seek.weighed(trial(stage="screened", **SLOWER_AND_SMALLER)).verdict == "inconclusive"
    assert seek.weighed(trial(stage="screened")).verdict == "rejected"


def test_energy_needs_its_whole_interval():
    seek = Aim(objective="energy")
    assert seek.weighed(trial(1.3, energy=0.9)).verdict == "kept"
    assert seek.weighed(trial(0.8, energy=1.1)).verdict == "rejected"
    assert seek.weighed(trial(0.8, energy=0.995)).verdict == "inconclusive"
    missing = seek.weighed(trial(0.8))
    assert (missing.verdict, missing.ratio) == ("inconclusive", None)
    assert not seek.can_judge(missing)


def test_a_stored_trial_is_judged_anew_by_another_aim():
    by_memory = Aim(objective="memory").weighed(trial(**SLOWER_AND_SMALLER))
    again = Aim().weighed(by_memory)
    assert (again.verdict, again.judged_by) == ("rejected", "time")
    assert "3 processes" in again.reason


def test_what_leaves_the_allowed_memory_is_rejected():
    found = Aim(max_memory_bytes=120).weighed(trial(**FASTER_AND_LARGER))
    assert found.verdict == "rejected"
    assert found.reason == "needs 150 B, --max-memory is 120 B"
    assert Aim(max_memory_bytes=150).weighed(trial(**FASTER_AND_LARGER)).verdict == "kept"


def test_until_it_fits_memory_is_sought():
    found = Aim(max_memory_bytes=50).weighed(trial(**SLOWER_AND_SMALLER))
    assert (found.verdict, found.judged_by) == ("kept", "memory")


@pytest.mark.parametrize(
    "fields",
    [{"time_ratio": None}, {"bound": Bound(least_time_ratio=1, basis="floor", broken=True)}],
)
def test_what_failed_or_cannot_be_keeps_its_verdict(fields):
    each = trial(verdict="inconclusive", **fields)
    assert Aim(objective="memory").weighed(each) is each


def test_levers_beyond_the_class_are_not_tried():
    strict, middle = Aim(numerics="exact"), Aim(numerics="reordered")
    bf16, sdpa, recompute = map(lever, ("bf16", "sdpa", "checkpointing"))
    assert strict.obstacle(recompute, BASE) is None
    assert strict.obstacle(recompute, configured(compile="default")) is not None
    assert strict.obstacle(sdpa, BASE) == "is reordered, and --numerics exact was asked for"
    assert middle.obstacle(sdpa, BASE) is None
    assert middle.obstacle(bf16, BASE) is not None
    assert Aim().obstacle(bf16, BASE) is None


def test_its_notes_say_what_is_not_the_default():
    assert Aim().notes() == ()
    said = " ".join(Aim(objective="memory", max_memory_bytes=2**30, numerics="exact").notes())
    assert "whatever their time" in said
    assert "At most 1.00 GiB" in said
    assert "numerics class exact" in said


def test_a_best_that_is_still_too_large_is_said():
    seek = Aim(max_memory_bytes=100)
    assert seek.missed(100) == seek.missed(None) == Aim().missed(200) == ()
    assert seek.missed(200) == ("The best found still needs 200 B, more than --max-memory.",)


class Measured(World):
    """A world whose trials are judged by an aim: recomputing takes longer and less."""

    def __init__(self, aim, **fields):
        super().__init__(self.seconds, **fields)
        self.aim = aim

    @staticmethod
    def seconds(case):
        slow = 1.3 if case.configuration.checkpointing != "none" else 1.0
        return slow * (0.5 if case.configuration.precision == "bf16" else 1.0)

    @staticmethod
    def peak(case):
        small = 0.5 if case.configuration.checkpointing != "none" else 1.0
        return round(1000 * small * (0.7 if case.configuration.precision == "bf16" else 1.0))

    def trial(self, name, base, candidate, **fields):
        plain = super().trial(name, base, candidate, **fields)
        peaks = {"base_peak_bytes": self.peak(base), "candidate_peak_bytes": self.peak(candidate)}
        return self.aim.weighed(
            type(plain)(**{f: getattr(plain, f) for f in plain.__struct_fields__} | peaks)
        )


def best(aim):
    found = Investigated(Measured(aim), seeks_memory=aim.seeks_memory)
    return name_of(found.compose(BASE, tuple(map(lever, ("checkpointing", "bf16")))))


def test_a_search_for_memory_takes_what_saves_it():
    assert best(Aim()) == "bf16"
    assert best(Aim(objective="memory")) == "bf16 every-block"


def test_a_search_within_a_limit_recomputes_only_where_it_must():
    assert best(Aim(max_memory_bytes=1000)) == "bf16"
    assert best(Aim(max_memory_bytes=400)) == "bf16 every-block"
