"""Levers that keep fewer bits are held to the loss of a real model."""

from types import SimpleNamespace

import msgspec
import pytest

from peakward.levers.catalogue import lever
from peakward.levers.weights import SIZES
from peakward.prediction.parameters import n_parameters
from peakward.records.case import Configuration, QualityCase, Workload
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Claim, NumericsVerdict
from peakward.records.measurement import Losses, Quality
from peakward.tune.investigation import Investigation
from peakward.tune.quality import MOST_LOST, Reading

from .world import BASE, Investigated, World

DECODE = msgspec.structs.replace(BASE, workload=Workload(batch_size=1, seq_len=64, pass_="decode"))
N_PARAMETERS = n_parameters(BASE.model)
HOLDS = NumericsVerdict(declared="approximate", verdict="holds")


def kept(**settings):
    return msgspec.structs.replace(DECODE, configuration=Configuration(**settings))


def claim(base, candidate):
    return Claim(base=base, candidate=candidate, declared="approximate")


class Sweep:
    """Answers a text with a loss for each way."""

    def __init__(self, lost, *, parameters=N_PARAMETERS, status="ok"):
        self.lost, self.parameters, self.status, self.asked = lost, parameters, status, []

    def measure(self, case, protocol):
        assert isinstance(case, QualityCase)
        assert case.sizes == SIZES
        self.asked.append((case.model, case.way))
        if self.status == "late":
            raise OutOfTimeError("its time in the budget ended while reading")
        lost = self.lost.get(case.way, (0.0, 0.0, 0.0))
        losses = tuple(at + more for at, more in zip((2.0, 2.5, 3.0), lost, strict=True))
        read = Quality(losses=(Losses(where="here", losses=losses),))
        return SimpleNamespace(
            quality=read if self.status == "ok" else None,
            status=self.status,
            reason="no such text" if self.status != "ok" else None,
            n_parameters=self.parameters,
        )


def judged(sweep, base, candidate, *, model="a real one", numerics=HOLDS):
    return Reading(sweep, model).judged(claim(base, candidate), numerics)


def test_a_small_loss_holds_and_is_told():
    sweep = Sweep({"int8, static": (0.002, 0.003, 0.004)})
    found = judged(sweep, kept(kv_cache="none"), kept(weights="int8", kv_cache="none"))
    assert sweep.asked == [("a real one", "dense, static"), ("a real one", "int8, static")]
    assert found.verdict == found.quality.verdict == "holds"
    assert found.quality.loss == pytest.approx(2.5)
    assert found.quality.more_loss.estimate == pytest.approx(0.003)
    assert found.quality.bound == MOST_LOST


@pytest.mark.parametrize("lost", [(0.4, 0.41, 0.39), (0.0, 0.04, 0.08)])
def test_a_loss_that_is_not_within_the_bound_is_a_violation(lost):
    """The second's mean is, and its interval is not."""
    found = judged(Sweep({"int4:128, static": lost}), kept(), kept(weights="int4:128"))
    assert found.verdict == found.quality.verdict == "violated"
    assert "nats a token more loss on python-topics" in found.reason
    assert "at most 0.05 is allowed" in found.reason


def test_a_cache_in_fewer_bits_is_read_too():
    sweep = Sweep({"int8, fp8": (0.001, 0.001, 0.002)})
    both = kept(weights="int8"), kept(weights="int8", kv_cache="fp8")
    assert judged(sweep, *both).quality.verdict == "holds"
    assert [way for _, way in sweep.asked] == ["int8, static", "int8, fp8"]


def test_what_keeps_as_many_bits_or_is_wrong_already_is_not_read():
    sweep = Sweep({})
    same = kept(weights="int8"), kept(weights="int8", precision="bf16")
    assert judged(sweep, *same) is HOLDS
    wrong = NumericsVerdict(declared="approximate", verdict="violated")
    assert judged(sweep, kept(), kept(weights="int8"), numerics=wrong) is wrong
    assert not sweep.asked


def test_random_weights_tell_no_quality():
    found = judged(Sweep({}), kept(), kept(weights="int8"), model=None)
    assert (found.verdict, found.quality.verdict) == ("holds", "not computed")
    assert found.quality.reason.startswith("random weights")
    assert found.quality.more_loss is None


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (Sweep({}, status="crashed"), "a real one with dense, static: no such text"),
        (Sweep({}, status="late"), "its time in the budget ended"),
        (Sweep({}, parameters=7), "7 parameters and t"),
    ],
)
def test_what_could_not_be_read_is_not_computed_and_says_why(sweep, said):
    found = judged(sweep, kept(), kept(weights="int8"))
    assert (found.verdict, found.quality.verdict) == ("not computed", "not computed")
    assert said in found.quality.reason


def test_a_lever_that_is_calibrated_needs_real_weights():
    asked = Investigation(
        case=kept(precision="bf16"),
        levers=(lever("int4-calibrated"), lever("int4-weights")),
        budget_s=60.0,
        command="peakward run",
        obstacle=lambda _lever, _case: None,
        to_command=lambda _case: None,
    )
    assert [each.name for each in asked.applicable] == ["int4-weights"]
    assert "--real-model" in asked.forbids(asked.levers[0], asked.case)
    named = msgspec.structs.replace(asked, real_model="smollm2")
    assert [each.name for each in named.applicable] == ["int4-calibrated", "int4-weights"]


def test_a_search_keeps_no_lever_that_loses_too_much():
    class Lossy(World):
        def on_text(self, claims, verdicts):
            reading = Reading(Sweep({"int4:128, static": (0.4, 0.41, 0.39)}), "a real one")
            return tuple(map(reading.judged, claims, verdicts))

    seconds = {"dense": 8.0, "int8": 4.0, "int4:128": 2.0}
    world = Lossy(lambda case: seconds[case.configuration.weights])
    found = Investigated(world)
    top = found.compose(DECODE, [lever("int8-weights"), lever("int4-weights")])
    assert top.configuration.weights == "int8"
    (int4,) = [
        each for each in found.trials if each.lever == "int4-weights" and each.base == DECODE
    ]
    assert int4.verdict == "rejected"
    assert int4.reason.startswith("reads worse: 0.400 nats a token more loss")
    assert int4.numerics.quality.verdict == "violated"


@pytest.mark.parametrize(
    ("by_128", "kept"),
    [((0.01, 0.02, 0.01), "int4:128-calibrated"), ((0.2, 0.22, 0.21), "int4:32-calibrated")],
)
def test_a_search_goes_on_to_what_rounds_nearer_where_bits_lose_too_much(by_128, kept):
    lost = {
        "int4:128, static": (0.4, 0.41, 0.39),
        "int4:128-calibrated, static": by_128,
        "int4:32-calibrated, static": (0.01, 0.02, 0.01),
    }

    class Lossy(World):
        def on_text(self, claims, verdicts):
            reading = Reading(Sweep(lost), "a real one")
            return tuple(map(reading.judged, claims, verdicts))

    seconds = {
        "dense": 8.0,
        "int8": 4.0,
        "int4:128": 2.0,
        "int4:128-calibrated": 2.0,
        "int4:32-calibrated": 2.2,
    }
    found = Investigated(Lossy(lambda case: seconds[case.configuration.weights]))
    names = ("int8-weights", "int4-weights", "int4-calibrated", "int4-calibrated-32")
    top = found.compose(DECODE, [lever(each) for each in names])
    assert top.configuration.weights == kept
