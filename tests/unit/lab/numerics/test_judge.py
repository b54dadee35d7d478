"""The verdicts on outputs, by class."""

import pytest
import torch

from peakward.lab.numerics.judge import Subject, judge
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.lever import Claim
from peakward.records.model_shape import ModelShape

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


def case(**configuration):
    return ModelCase(
        model=SHAPE,
        workload=Workload(batch_size=2, seq_len=16),
        configuration=Configuration(**configuration),
        device="cpu",
    )


BASE, SDPA, FUSED = case(), case(attention="sdpa"), case(attention="sdpa", optimizer="adamw-fused")
CHECKPOINTED = case(attention="sdpa", checkpointing="every-block")


class Losses:
    """Each case's loss, and how often it was computed."""

    def __init__(self, losses):
        self.losses, self.ran = losses, []

    def outputs(self, case, _n_trained):
        self.ran.append((case, torch.are_deterministic_algorithms_enabled()))
        return {"loss": (torch.tensor(self.losses[case], dtype=torch.float64),)}

    def oracle(self):
        self.ran.append("oracle")
        return {"loss": (torch.tensor(1.0, dtype=torch.float64),)}

    def judged(self, *claims):
        claims = [
            Claim(base=base, candidate=candidate, declared=declared)
            for base, candidate, declared in claims
        ]
        return judge(Subject(self.oracle, self.outputs, n_layers=1), claims)


def verdict(base, candidate):
    (found,) = Losses({BASE: base, SDPA: candidate}).judged((BASE, SDPA, "reordered"))
    return found.verdict


@pytest.mark.parametrize(("roundings", "expected"), [(3.5, "holds"), (4.5, "violated")])
def test_a_loss_may_err_by_the_roundings_that_any_way_to_it_passes(roundings, expected):
    """Though the base agrees with the oracle by luck."""
    assert verdict(1.0, 1.0 + roundings * 2.0**-24) == expected


def test_a_loss_may_err_twice_as_much_as_its_base():
    assert verdict(1.0 + 2.0**-10, 1.0 + 2.0**-9) == "holds"
    assert verdict(1.0 + 2.0**-10, 1.0 + 2.0**-8) == "violated"


def test_the_claims_of_a_stack_share_the_oracle_and_each_case():
    """Two steps and the whole would be nine computations apart from each other."""
    losses = Losses({BASE: 1.0 + 2.0**-12, SDPA: 1.0 + 2.0**-11, FUSED: 1.0 + 2.0**-10})
    steps = losses.judged(
        (BASE, SDPA, "reordered"), (SDPA, FUSED, "reordered"), (BASE, FUSED, "reordered")
    )
    assert losses.ran == ["oracle", (BASE, False), (SDPA, False), (FUSED, False)]
    assert [each.verdict for each in steps] == ["holds", "holds", "violated"]
    assert [each.errors[0].base_error for each in steps] == [2.0**-12, 2.0**-11, 2.0**-12]


def test_an_exact_claim_compares_bits_under_determinism():
    losses = Losses({BASE: 1.0, SDPA: 1.0 + 2.0**-20, CHECKPOINTED: 1.0 + 2.0**-20})
    apart, same = losses.judged((BASE, SDPA, "exact"), (SDPA, CHECKPOINTED, "exact"))
    assert (apart.verdict, apart.reason) == ("violated", "not bitwise equal")
    assert same.verdict == "holds"
    assert losses.ran == ["oracle", (BASE, True), (SDPA, True), (CHECKPOINTED, True)]


@pytest.mark.parametrize(("candidate", "expected"), [(1.01, "holds"), (1.011, "violated")])
def test_a_base_that_rounds_more_than_the_type_is_the_bound(candidate, expected):
    """A module may compute in bf16 by itself: tf32 then changes nothing, and may err as much."""
    tf32 = case(precision="tf32")
    (found,) = Losses({BASE: 1.01, tf32: candidate}).judged((BASE, tf32, "approximate"))
    assert found.verdict == expected
