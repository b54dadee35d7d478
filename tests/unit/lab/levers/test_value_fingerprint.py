"""What a fingerprint of values sees."""

import pytest
import torch

from peakward.lab.levers import value_fingerprint
from peakward.lab.levers.value_fingerprint import fingerprint


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(value_fingerprint, "_AT_ONCE", 7)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]
)
def test_one_bit_of_one_value_shows(dtype):
    values = torch.randn(5, 6, dtype=dtype)
    other = values.clone()
    assert fingerprint(other) == fingerprint(values)
    other[3, 2] = -other[3, 2]
    assert fingerprint(other) != fingerprint(values)


def test_an_exchange_of_two_values_shows():
    values = torch.arange(30.0)
    other = values.clone()
    other[[8, 12]] = values[[12, 8]]
    assert fingerprint(other) != fingerprint(values)


def test_nan_and_infinities_are_counted_and_nan_is_itself():
    values = torch.zeros(30, dtype=torch.bfloat16)
    values[[0, 9, 29]] = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.bfloat16)
    found = fingerprint(values)
    assert (found.n_values, found.n_nonfinite) == (30, 3)
    assert found == fingerprint(values.clone())


def test_any_layout_and_no_values_at_all():
    assert fingerprint(torch.randn(4, 6).t()).n_values == 24
    assert fingerprint(torch.empty(0)).sums == fingerprint(torch.empty(0, 3)).sums
