"""Tokens are drawn with the probabilities of the definition."""

import pytest
import torch

from peakward.lab.inference.sampling import chosen, drawn, first_above, probabilities
from peakward.records.generation import Sampling

N_DRAWS, VOCAB = 40_000, 8
LOGITS = torch.tensor([1.0, -0.5, 2.0, 0.3, 2.0, -3.0, 0.9, 0.0], dtype=torch.float64)
CHI_SQUARED = 33.7
"""Of 7 degrees of freedom, exceeded by a right sampler once in 50,000 draws (fewer degrees: less often)."""


def by_definition(temperature=1.0, top_k=None, top_p=None):
    """In plain Python: weights of the kept tokens, over their sum."""
    weights = {
        each: 2.718281828459045 ** (float(LOGITS[each]) / temperature) for each in range(VOCAB)
    }
    kept = sorted(weights, key=lambda each: (-weights[each], each))[:top_k]
    if top_p is not None:
        total, sum_, few = sum(weights[each] for each in kept), 0.0, []
        for each in kept:
            if few and sum_ >= top_p * total:
                break
            few.append(each)
            sum_ += weights[each]
        kept = few
    total = sum(weights[each] for each in kept)
    return torch.tensor([weights[each] / total if each in kept else 0.0 for each in range(VOCAB)])


RULES = (
    {},
    {"temperature": 0.7},
    {"temperature": 1.6},
    {"top_k": 3},
    {"top_k": 1},
    {"top_k": VOCAB + 5},
    {"top_p": 0.6},
    {"top_p": 0.7},
    {"top_p": 1.0},
    {"top_p": 1e-9},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9},
)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_probabilities(rule):
    found = probabilities(LOGITS, Sampling(**{"temperature": 1.0, **rule}))
    torch.testing.assert_close(found, by_definition(**rule), check_dtype=False)
    several = torch.stack((LOGITS, LOGITS.flip(0) * 3))
    assert torch.equal(probabilities(several, Sampling(**{"temperature": 1.0, **rule}))[0], found)


def statistic(rule, expected):
    """Pearson's, of draws by the rule against expected probabilities; infinite where one is impossible."""
    by, draws = Sampling(**{"temperature": 1.0, **rule}), torch.from_numpy(drawn(3, 0, N_DRAWS))
    counts = chosen(LOGITS.expand(N_DRAWS, VOCAB), by, draws).bincount(minlength=VOCAB)
    possible = expected > 0
    if counts[~possible].any():
        return float("inf")
    due = expected[possible].double() * N_DRAWS
    return float(((counts[possible] - due) ** 2 / due).sum())


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_draws_follow_them(rule):
    assert statistic(rule, by_definition(**rule)) < CHI_SQUARED


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        ({"temperature": 1.0}, {"temperature": 1.05}),
        ({"top_k": 3}, {"top_k": 4}),
        ({"top_k": 4}, {"top_k": 3}),
        ({"top_p": 0.7}, {"top_p": 0.6}),
        ({"temperature": 0.8, "top_p": 0.9}, {"top_p": 0.9}),
    ],
    ids=str,
)
def test_draws_by_another_rule_would_be_found(rule, other):
    assert statistic(rule, by_definition(**other)) > CHI_SQUARED


@pytest.mark.parametrize("temperature", [1e-12, 1e-38, 1e-40, 1e-300])
def test_a_temperature_near_0_takes_the_likeliest(temperature):
    few = torch.tensor([0.25, 4.0, -2.0, 3.5])
    assert probabilities(few, Sampling(temperature=temperature)).tolist() == [0, 1, 0, 0]


def test_a_top_p_of_1_keeps_every_token():
    logits = torch.linspace(0, -12, 50_000)
    assert (probabilities(logits, Sampling(temperature=1.0, top_p=1.0)) > 0).all()


def test_the_likeliest_and_of_equal_ones_the_first():
    assert chosen(LOGITS[None], Sampling(), torch.zeros(1)).tolist() == [2]
    assert probabilities(LOGITS, Sampling()).argmax() == 2


def test_a_draw_falls_on_what_has_a_weight():
    weights = torch.tensor([[0.0, 0.5, 0.0, 1.5, 0.0]]).expand(4, 5)
    draws = torch.tensor([0.0, 0.2499, 0.25, 1 - 2**-53], dtype=torch.float64)
    assert first_above(weights, draws).tolist() == [1, 1, 3, 3]


def test_draws_are_of_the_seed_and_the_text():
    assert (drawn(5, 1, 8)[:3] == drawn(5, 1, 3)).all()
    kinds = {tuple(drawn(seed, number, 3)) for seed in (0, 1, 2**63 - 1) for number in (0, 1, 2)}
    assert len(kinds) == 9
