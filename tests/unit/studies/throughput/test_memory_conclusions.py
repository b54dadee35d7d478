"""What `throughput` concludes of what trains under a limit."""

import msgspec
import pytest

from peakward.records.measurement import MemoryUse
from peakward.studies import throughput
from peakward.studies.peaks import predicted_peak
from peakward.studies.throughput.limits import limits, read
from peakward.studies.throughput.memory_conclusions import additions, boundaries, precisions


@pytest.fixture
def known(setting, gathered):
    def make(**options):
        here = setting()
        return read(gathered(throughput, here, **options), here), limits(here)

    return make


def as_predicted(row):
    """The row, its peak without a limit the predicted one."""
    if row.free is None or row.free.status != "ok":
        return row
    peak = MemoryUse(peak_allocated_bytes=predicted_peak(row.way.case))
    return msgspec.structs.replace(row, free=msgspec.structs.replace(row.free, memory=peak))


@pytest.fixture
def said_of_precisions(known):
    def make(**options):
        rows, bounds = known(**options)
        return precisions([as_predicted(row) for row in rows], bounds)

    return make


def test_the_sizes_that_only_a_lower_precision_trains(known):
    texts = [each.text for each in boundaries(*known())]
    assert texts == [
        "Sizes that train under 24.0 GiB: fp32 1 of 2; bf16-mixed 1 of 2; bf16 1 of 2.",
        "Sizes that train under 40.0 GiB: fp32 1 of 2; bf16-mixed 1 of 2; bf16 2 of 2 (2.7B not in fp32).",
        "Sizes that train under 80.0 GiB: fp32 2 of 2; bf16-mixed 2 of 2; bf16 2 of 2.",
    ]


def test_a_size_that_crashed_is_not_counted(known):
    def crash(case):
        small_fp32 = case.model.name == "small" and case.configuration.precision == "fp32"
        return "crashed" if small_fp32 else None

    assert "fp32 0 of 1; bf16-mixed 1 of 2" in boundaries(*known(overrule=crash))[0].text


def test_what_an_addition_lets_train(known, true_peak):
    """In a world where only 2.7B with checkpointing stays under 40 GiB."""

    def full(case):
        if case.model.name != "2.7B" or case.configuration.checkpointing != "none":
            return None
        limit = case.memory_limit_bytes
        return "oom" if limit and limit < 50 * 2**30 else None

    def world(case):
        bf16 = case.configuration.precision == "bf16" and case.workload.pass_ == "train_step"
        unlimited = case.memory_limit_bytes is None
        return (
            "oom"
            if bf16 and unlimited and case.configuration.checkpointing == "none"
            else full(case)
        )

    texts = [each.text for each in additions(*known(overrule=world))]
    assert (
        "Under 40.0 GiB, bf16 + checkpointing trains small, 2.7B, which bf16 alone cannot." in texts
    )


def test_mixed_precision_keeps_its_states_and_moves_no_boundary(said_of_precisions, figures):
    peaks, by_category, moved, *_ = said_of_precisions()
    assert peaks.text.startswith(
        "Peak memory of bf16-mixed against fp32: small 4 × 1024 train_step"
    )
    told = figures(by_category)
    states = "parameters, gradients and optimizer state"
    assert told[f"{states}, bf16-mixed"] == told[f"{states}, fp32"], "both keep them in fp32"
    assert told["casts of weights, bf16-mixed"] > 0 == told["casts of weights, fp32"]
    assert told["activations and logits, bf16-mixed"] < told["activations and logits, fp32"]
    assert moved.text == (
        "Of 6 pairs of a size and a memory limit, bf16-mixed trains 0 that fp32 does not, and fp32 0 that "
        "bf16-mixed does not."
    )


def test_pure_bf16_halves_the_states(said_of_precisions, figures):
    *_, peaks, by_category, moved = said_of_precisions()
    told = figures(by_category)
    states = "parameters, gradients and optimizer state"
    assert told[f"{states}, bf16"] == pytest.approx(told[f"{states}, fp32"] / 2, rel=1e-3)
    assert figures(peaks)["peak over fp32's, 2.7B 4 × 1024 train_step"] < 0.75
    assert "bf16 trains 1 that fp32 does not" in moved.text


def test_peaks_that_are_not_the_predicted_ones_are_not_told_by_category(known):
    """As on a CPU, where the process is measured."""
    rows, bounds = known()
    said = precisions(rows, bounds)
    assert not any("by category" in each.text for each in said)
    assert sum("Peak memory of" in each.text for each in said) == 2


def test_a_boundary_that_moves_the_other_way_is_said(known):
    """Casts of weights may make mixed precision the larger: 85.9 against 85.4 GiB of 2.7B on an H200."""

    def mixed_is_larger(case):
        return "oom" if case.configuration.precision == "bf16-mixed" else None

    (moved,) = [
        each
        for each in precisions(*known(overrule=mixed_is_larger))
        if each.text.startswith("Of 6 pairs") and "bf16-mixed" in each.text
    ]
    assert moved.text.startswith("Of 6 pairs of a size and a memory limit, bf16-mixed trains 0")
    assert moved.text.endswith("and fp32 4 that bf16-mixed does not.")


def test_a_precision_without_fp32_beside_it_says_nothing_of_peaks(known):
    def no_base(case):
        return "crashed" if case.configuration.precision == "fp32" else None

    assert precisions(*known(overrule=no_base)) == ()


def test_the_price_of_an_addition_by_size(known, figures):
    (said,) = [
        each
        for each in additions(*known())
        if each.text.startswith("bf16 + flash attention against bf16 alone")
    ]
    told = figures(said)
    assert told["time, small"] == pytest.approx(1.0)
    assert told["peak memory, small"] < told["peak memory, 2.7B"] < 1.0


def test_nothing_ran_nothing_said(known):
    rows, bounds = known(overrule=lambda case: "timeout")
    assert boundaries(rows, bounds) == ()
    assert additions(rows, bounds) == ()
