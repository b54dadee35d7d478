"""Moments in bf16 and in 8 bits: the codes, and the random bits that round them."""

import math

import pytest
import torch

from peakward.kernels.ops.adamw import stored

CODES = {"first": stored.FIRST, "second": stored.SECOND}
EVERY = torch.arange(256, dtype=torch.uint8)


def test_random_words_are_philox():
    """Salmon et al.'s known answer of Philox-4x32-10 for a counter and a key of zeros."""
    words = stored.random_words(4 * stored.TILE, seed=0, number=0, step=0).view(4, stored.TILE)
    assert [hex(each) for each in words[:, 0].tolist()] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


@pytest.mark.parametrize("name", CODES)
def test_every_code_is_a_value_that_is_not_rounded_again(name):
    code, top = CODES[name], torch.tensor([130], dtype=torch.uint8)
    values = stored.decode(EVERY, top, code)
    for bits in (0, 0xFFFF):
        codes, exponents = stored.encode(values, torch.full((256,), bits), code)
        assert torch.equal(stored.decode(codes, exponents, code), values)
        assert torch.equal(exponents, top)
    sizes = values[:128] if code.signed else values
    assert sizes.diff().gt(0).all()
    assert float(sizes[-1]) == 2.0**3 * 1.875


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_a_value_becomes_a_neighbour_and_is_kept_in_the_mean(name, scale):
    """Over evenly spaced random bits the mean is off by no more than their spacing leaves."""
    code, n = CODES[name], 1024
    x = torch.randn(stored.BLOCK, generator=torch.Generator().manual_seed(0)) * scale
    x = x.double().abs() + 1e-3 * scale if code is stored.SECOND else x.double()
    least = x.abs().max() * 2.0 ** (1 - code.exponents)
    distance = torch.maximum(x.abs(), least) * 2.0**-stored.MANTISSA
    total = torch.zeros_like(x)
    for bits in (torch.arange(n) * (65536 // n) + 32768 // n).tolist():
        codes, exponents = stored.encode(x.float(), torch.full((stored.BLOCK,), bits), code)
        found = stored.decode(codes, exponents, code).double()
        assert ((found - x).abs() <= distance).all()
        total += found
    assert ((total / n - x).abs() <= distance / n).all()


def test_a_second_moment_above_zero_stays_above_it():
    x = torch.zeros(stored.BLOCK)
    x[0], x[1] = 1.0, 1e-30
    codes, exponents = stored.encode(x, torch.zeros(stored.BLOCK, dtype=torch.int64), stored.SECOND)
    found = stored.decode(codes, exponents, stored.SECOND)
    assert 0 < float(found[1]) < 2.0**-30
    assert found[2:].eq(0).all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_stays_so(bad):
    x = torch.ones(2 * stored.BLOCK)
    x[3] = bad
    for code in CODES.values():
        found = stored.decode(*stored.encode(x, torch.full(x.shape, 9), code), code)
        assert found[: stored.BLOCK].isnan().all()
        assert found[stored.BLOCK :].eq(1).all()
    found = stored.to_bf16(x, torch.full(x.shape, 0xFFFF))
    assert torch.equal(found[3:4].float(), x[3:4]) or found[3].isnan()


def test_steps_parameters_and_seeds_round_by_other_bits():
    def words(**given):
        return stored.random_words(5000, **{"seed": 1, "number": 2, "step": 3} | given)

    base = words()
    assert base.unique().numel() > 4990
    for name in ("seed", "number", "step"):
        same = (words(**{name: 77}) & 0xFFFF) == (base & 0xFFFF)
        assert same.sum() < 5
    assert ((base & 0xFFFF) == (base >> 16)).sum() < 5
