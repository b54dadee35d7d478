"""The losses with the output layer in them on a device of round figures, by hand."""

import msgspec
import pytest

from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case

from .round_device import US, case, device

TOKENS, WIDTH, VOCAB = 4 * 128, 768, 10_000


def found(loss, phase, **settings):
    """The loss's own operator in a step of `small`, and its time."""
    made = case("small", loss=loss, precision="bf16", **settings)
    (operator,) = (
        each
        for each in op_graph(made).operators
        if "linear_cross_entropy" in each.name and each.phase == phase
    )
    return operator, cost(operator, of_case(made), device())


def waves_s(m, n, k):
    tiles = -(-m // 128) * -(-n // 128)
    return -(-tiles // 100) * 2 * 128 * 128 * k / 1e12


def test_without_logits_it_is_one_product():
    operator, told = found("recomputed", "forward")
    assert operator.flops == 2 * TOKENS * WIDTH * VOCAB
    assert told.device_s == pytest.approx(3 * US + waves_s(TOKENS, VOCAB, WIDTH))
    assert (told.n_launches, told.bound) == (3.0, "compute")


def test_all_logits_at_once_are_passed_over_once_and_multiplied_again_backward():
    """Of hidden and its gradient a pass, each of which is read and written."""
    operator, told = found("chunked", "forward")
    assert operator.flops == 4 * TOKENS * WIDTH * VOCAB
    sizes = ((TOKENS, VOCAB, WIDTH), (TOKENS, WIDTH, VOCAB))
    over_logits_s = 2 * TOKENS * VOCAB * 2 / 1e12 + 2 * US
    expected = 6 * US + sum(waves_s(*each) for each in sizes) + over_logits_s
    assert told.device_s == pytest.approx(expected)
    operator, told = found("chunked", "backward")
    assert operator.flops == 2 * TOKENS * WIDTH * VOCAB
    scaled_s = 4 * TOKENS * WIDTH * 2 / 1e12 + 2 * US
    assert told.device_s == pytest.approx(3 * US + waves_s(VOCAB, WIDTH, TOKENS) + scaled_s)


def test_a_chunk_is_multiplied_three_times_and_passed_over_once():
    """Of 64 times the tokens two chunks, the second of which is added to what is there."""
    operator, told = found("chunked", "forward", batch_size=128)
    assert operator.flops == 6 * 16_384 * WIDTH * VOCAB
    sizes = ((16_384, VOCAB, WIDTH), (16_384, WIDTH, VOCAB), (VOCAB, WIDTH, 16_384))
    passes_s = 2 * (16_384 * VOCAB * 2 + VOCAB * WIDTH * 4) / 1e12 + 2 * US
    expected = 18 * US + sum(waves_s(*each) for each in sizes) + passes_s
    assert told.device_s == pytest.approx(expected)


def test_more_chunks_cost_a_pass_over_the_sums_each():
    """Of 64 times the tokens 328 MB of logits, more than 256 MiB hold."""
    one, told = found("recomputed", "backward", batch_size=128)
    sizes = (
        (16_384, VOCAB, WIDTH),
        (16_384, WIDTH, VOCAB),
        (VOCAB, WIDTH, 16_384),
    )
    again_s = 2 * 16_384 * WIDTH * 4 / 1e12 + 2 * US
    assert one.flops == 6 * 16_384 * WIDTH * VOCAB
    assert told.device_s == pytest.approx(18 * US + sum(waves_s(*each) for each in sizes) + again_s)


def test_a_type_that_nobody_measured_has_no_time():
    operator, _ = found("chunked", "forward")
    made = case("small", loss="chunked", precision="bf16")
    assert cost(operator, of_case(made), device(products={})).device_s is None


def test_the_recomputed_ones_own_kernels_have_no_tf32():
    both = {"fp32": device().products["fp32"]}
    for loss, kind, knows in (("recomputed", "recomputed", True), ("chunked", "whole", False)):
        made = case("small", loss=loss, precision="tf32")
        name = f"peakward.linear_cross_entropy_{kind}"
        (operator,) = (each for each in op_graph(made).operators if each.name == name)
        told = cost(msgspec.structs.replace(operator), of_case(made), device(products=both))
        assert (told.device_s is not None) == knows
