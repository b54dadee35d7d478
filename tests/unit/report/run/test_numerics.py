import msgspec

from peakward.records.lever import NumericsVerdict, QualityVerdict
from peakward.records.measurement import Interval
from peakward.report.run.investigation import read
from peakward.report.run.page import numerics_table, quality_table

replace = msgspec.structs.replace


def with_numerics(study, *verdicts):
    trials = tuple(
        replace(trial, numerics=verdict)
        for trial, verdict in zip(study.trials, verdicts, strict=False)
    )
    return replace(study, trials=trials)


def table(study):
    return numerics_table(study, read(study))


def test_the_quantity_nearest_its_bound_is_shown(run_study):
    assert table(run_study).rows[0] == (
        "bf16", "baseline", "approximate", "holds", "logits", 0.0061, 3.2e-7, 0.02, None,
    )  # fmt: skip


def test_a_bound_of_zero_is_nearest_once_it_is_missed(run_study, studies):
    broken = studies.numerics("exact", 0.0, 0.0, verdict="violated", reason="not bitwise equal")
    errors = (replace(broken.errors[0], candidate_error=1e-9), broken.errors[1])
    (row,) = table(with_numerics(run_study, replace(broken, errors=errors))).rows
    assert row[3:6] == ("violated", "gradients", 1e-9)
    assert row[-1] == "not bitwise equal"


def test_equal_verdicts_on_one_base_are_shown_once(run_study):
    twice = replace(run_study, trials=(run_study.trials[6], *run_study.trials))
    assert table(twice) == table(run_study)


def test_a_verdict_without_errors_gives_its_reason(run_study):
    unknown = NumericsVerdict(
        declared="reordered", verdict="not computed", reason="the fp64 model does not fit"
    )
    (row,) = table(with_numerics(run_study, unknown)).rows
    assert row[3:] == ("not computed", None, None, None, None, "the fp64 model does not fit")


def test_no_table_where_none_was_computed(run_study):
    assert table(with_numerics(run_study, None)) is None


def test_what_a_real_model_loses_stands_in_a_table_of_its_own(run_study):
    assert quality_table(run_study, read(run_study)) is None
    quality = QualityVerdict(
        verdict="violated",
        bound=0.05,
        model="smollm2",
        text="python-topics",
        loss=2.5,
        more_loss=Interval(estimate=0.4, low=0.3, high=0.5),
        reason="too much",
    )
    told = NumericsVerdict(declared="approximate", verdict="violated", quality=quality)
    study = with_numerics(run_study, told, told)
    (row, *_) = quality_table(study, read(study)).rows
    assert row[2:6] == ("violated", "smollm2", "python-topics", 2.5)
    assert row[6:] == ("0.400 (0.300–0.500)", 0.05, "too much")
