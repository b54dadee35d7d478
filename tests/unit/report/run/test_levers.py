import msgspec
import pytest

from peakward.report.run.investigation import read
from peakward.report.run.levers import (
    base_name,
    composition_table,
    lever_table,
    unconfirmed,
    verdict,
)

replace = msgspec.structs.replace


def test_every_trial_has_a_row_in_its_order(run_study):
    table = lever_table(run_study, read(run_study))
    assert [row[0] for row in table.rows] == [trial.lever for trial in run_study.trials]
    assert table.note == "Trials: 5 kept, 3 rejected, 3 inconclusive, 1 refused."


def test_what_a_row_says(run_study):
    rows = {(row[0], row[1]): row for row in lever_table(run_study, read(run_study)).rows}
    assert rows["sdpa", "step 2"][2:] == (
        "confirmed",
        "kept",
        pytest.approx(1 / 0.8910),
        "1.117–1.127×",
        pytest.approx(26 / 27 - 1),
        "holds",
        "faster in the interval (5 pairs, 2 processes)",
    )
    assert rows["sdpa-cudnn", "baseline"][2:8] == (None, "refused", None, None, None, None)
    assert rows["cuda-graphs", "step 4"][3:6] == ("rejected", "oom", None)


def test_bases_are_named_by_step_or_by_settings(run_study, studies):
    found = read(run_study)
    assert base_name(studies.BASELINE, found) == "baseline"
    assert base_name(studies.BF16, found) == "step 1"
    tf32 = studies.with_settings(studies.BASELINE, precision="tf32")
    assert base_name(tf32, found) == "tf32, naive attention, eager, adamw-foreach"


def test_the_composition_accumulates(run_study):
    table = composition_table(read(run_study))
    assert [row[1] for row in table.rows] == ["bf16", "compile", "sdpa", "fused-optimizer"]
    product = 1 / (0.1712 * 0.6680 * 0.8910 * 0.9530)
    assert table.rows[-1][5] == pytest.approx(product)


def test_what_was_not_confirmed_is_said(run_study):
    found = read(run_study)
    # sdpa and compile were confirmed on a later base; cuda-graphs was rejected.
    assert unconfirmed(run_study, found) == ("Screened, not confirmed: tf32 on baseline (3.41×).",)
    cut = replace(run_study, trials=run_study.trials[:-1])
    assert "the best against the baseline, in pairs" in unconfirmed(cut, read(cut))[-1]
    doubtful = replace(run_study.trials[-1], verdict="inconclusive", reason="too wide")
    cut = replace(run_study, trials=(*run_study.trials[:-1], doubtful))
    assert unconfirmed(cut, read(cut))[-1].endswith("the baseline, too wide.")


def test_a_refusal_is_not_called_a_rejection(run_study):
    assert [verdict(trial) for trial in run_study.trials[1:3]] == ["inconclusive", "refused"]
