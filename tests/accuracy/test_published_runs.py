"""Plans of layouts beside published runs."""

from collections import Counter
from functools import cache

import pytest

from published_runs import data, median_error, runs


@cache
def planned():
    return tuple(runs())


def group(source, device):
    return [each for each in planned() if each.source == source and each.device.startswith(device)]


def test_there_are_many_runs_with_a_source_and_what_was_assumed():
    sources = Counter(each.source for each in planned())
    assert len(planned()) >= 40
    assert set(sources) == set(data()["sources"]) == set(data()["assumed"])
    assert max(each.layout.n_ranks for each in planned()) == 16_384


@pytest.mark.parametrize(
    ("source", "device", "most"),
    [
        ("torchtitan", "h100", 0.23),
        ("llm-foundry", "h100", 0.19),
        ("llm-foundry", "a100", 0.065),
        ("llama3", "h100", 0.15),
        ("megatron", "a100", 0.095),
    ],
)
def test_the_median_error_has_not_grown(source, device, most):
    assert median_error(group(source, device)) < most


def test_the_median_of_all_is_within_the_aim():
    assert median_error(planned()) < 0.15
    assert median_error([each for each in planned() if each.source != "megatron"]) < 0.15


def test_more_gpus_cost_what_was_measured():
    """llama-3-8b on 128 GPUs beside 8: 97.3% and 97.7% of the tokens/s of each."""
    few, many = (
        [each for each in group("torchtitan", "h100") if each.layout.dp == n] for n in (8, 128)
    )
    for one, other in zip(few, many, strict=True):
        predicted, measured = other.planned / one.planned, other.published / one.published
        assert predicted == pytest.approx(measured, abs=0.03)


def test_compilation_gains_what_was_measured():
    eager, compiled = (each for each in group("torchtitan", "h100") if each.layout.dp == 8)
    gain = compiled.planned / eager.planned
    assert gain == pytest.approx(compiled.published / eager.published, abs=0.03)
