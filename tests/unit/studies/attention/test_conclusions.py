"""What `attention` concludes from known times and bytes."""

import numpy as np
import pytest

from peakward.studies import attention


@pytest.fixture
def said(setting, gathered):
    def make(scope="small", device="cpu", **options):
        here = setting(scope, device)
        return attention.parts(gathered(attention, here, **options), here).conclusions

    return make


def test_the_fastest_the_exponents_the_matrix_and_the_end(said, figures):
    found = said(overrule=lambda case: "oom" if _beyond(case) else None)
    forward, backward, growth, held, limit = found
    assert figures(forward)["speed over naive, forward"] == pytest.approx(8)
    # Of two medians known to 1% each: a ratio known to √2 of it.
    assert figures(forward)["low end of it"] == pytest.approx(8 * 0.986, rel=1e-3)
    assert "sdpa is the fastest" in backward.text
    lengths = np.array([128, 512, 1024])
    power, _ = np.polyfit(np.log(lengths), np.log(lengths * (lengths + 64)), 1)
    assert figures(growth)["exponent of memory held, naive"] == pytest.approx(power)
    assert figures(growth)["exponent of memory held, sdpa"] == pytest.approx(1)
    assert figures(held)["the probability matrix's share"] == pytest.approx(1024 / (1024 + 64))
    assert held.text.endswith("holds for backward; sdpa holds 2.00 MiB.")
    assert limit.text == (
        "Under 0.375 GiB, fp32, head dim 64, naive attention runs forward and backward up to length "
        "512 and is out of memory at 1,024."
    )


@pytest.fixture
def slowed(setting, gathered, measure):
    """The conclusions of a CPU's grid in which cases take a factor of their time."""

    def make(factor):
        here = setting("small", "cpu")
        readings = gathered(attention, here)
        for serial, each in enumerate(list(readings)):
            if each.status == "ok":
                told = measure(
                    each.case, each.protocol, here.environment, "ok", serial, factor(each.case)
                )
                readings.add(told)
        return attention.parts(readings, here).conclusions

    return make


def test_how_backward_grows_is_told_of_the_long_end_alone(slowed, figures):
    """Short lengths are launches: a fit over them would call naive's square of the length a line."""
    said = slowed(lambda case: 16 if case.seq_len == 128 else 1)
    (growth,) = [each for each in said if "memory held" in each.text]
    told = figures(growth)
    assert (told["short length"], told["long length"]) == (512, 1024)
    assert told["growth of backward time, naive"] == pytest.approx(4)
    assert told["growth of backward time, naive, low end"] == pytest.approx(4 * 0.986, rel=1e-3)
    assert not any("exponent of backward time" in name for name in told)


def test_what_the_fastest_is_not_measurably_faster_than_is_named(slowed):
    tied, *_ = slowed(lambda case: 1.005 if case.attention == "flex" else 1)
    assert (
        "sdpa is the fastest of those timed, though not measurably faster than flex: " in tied.text
    )
    clear, *_ = slowed(lambda case: 1.5 if case.attention == "flex" else 1)
    assert "sdpa is the fastest of those timed: " in clear.text
    assert clear.text.endswith("; not timed: flash, flash-hopper (cannot run here).")


def test_products_in_another_precision_are_no_rival(said):
    found = [each.text for each in said("corners", "cuda") if each.text.startswith("In fp32")]
    assert not any("compiled, tf32 is the fastest" in text for text in found)
    other = [text for text in found if "compiled, tf32 computes its products in tf32" in text]
    assert len(other) == 4
    assert all("8.00× the speed of naive in fp32" in text for text in other)


def test_in_bf16_the_matrix_is_two(said):
    (held, *_) = [
        each.text
        for each in said("corners", "cuda")
        if "probability matrix" in each.text and each.text.startswith("In bf16")
    ]
    assert "the probability matrix, in fp32 and its copy in bf16, is 100%" in held


def _beyond(case):
    return case.memory_limit_bytes and case.seq_len > 512


def test_where_naive_is_alone_nothing_is_faster(said):
    found = said(overrule=lambda case: None if _is_naive(case) else "crashed")
    texts = [each.text for each in found]
    assert not any("is the fastest" in text for text in texts)
    assert any(text.endswith("that naive attention holds for backward.") for text in texts)


def _is_naive(case):
    return case.attention == "naive" and case.compile == "none"


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()


def test_every_number_rests_on_a_measurement(said):
    for each in said("corners", "cuda"):
        assert all(proof.from_ids for proof in each.evidence)
