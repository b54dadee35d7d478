import msgspec
import pytest

from peakward.records.lever import Bound, Foretold
from peakward.records.measurement import Interval
from peakward.report import markdown
from peakward.report.run import document
from peakward.report.run.investigation import read
from peakward.report.run.levers import (
    base_name,
    composition_table,
    impossible,
    inapplicable,
    lever_table,
    unconfirmed,
    verdict,
)

replace = msgspec.structs.replace


def test_every_trial_that_ran_has_a_row_in_its_order(run_study):
    table = lever_table(run_study, read(run_study))
    ran = [trial.lever for trial in run_study.trials if trial.stage != "refused"]
    assert [row[0] for row in table.rows] == ran
    assert table.note == "Trials: 5 gain confirmed, 3 rejected, 3 inconclusive, 1 refused."


def test_what_a_row_says(run_study):
    rows = {(row[0], row[1]): row for row in lever_table(run_study, read(run_study)).rows}
    assert rows["sdpa", "step 2"][2:] == (
        "confirmed",
        "gain confirmed",
        "step 3",
        "1.122× (1.117–1.127×)",
        None,
        pytest.approx(26 / 27 - 1),
        "holds",
        "faster in the interval (5 pairs, 2 processes)",
    )
    assert rows["cuda-graphs", "step 4"][3:7] == ("rejected", None, "oom", None)


def test_refused_levers_are_one_sentence_by_reason(run_study):
    graphs, cudnn = run_study.trials[4], run_study.trials[2]
    refused = [
        replace(cudnn, lever=name, reason="needs a CUDA GPU, got a CPU") for name in ("tf32", "fp8")
    ]
    study = replace(run_study, trials=(*refused, graphs, cudnn, refused[0]))
    assert inapplicable(study) == (
        "Not applicable here: tf32, fp8 (needs a CUDA GPU, got a CPU); sdpa-cudnn (needs the precision "
        "bf16-mixed or fp16-mixed or bf16 or fp8, got fp32)."
    )
    assert inapplicable(replace(run_study, trials=(graphs,))) is None


def test_a_lever_refused_for_its_numerics_keeps_its_row(run_study):
    forbidden = replace(run_study.trials[6], stage="refused", verdict="rejected", time_ratio=None)
    study = replace(run_study, trials=(forbidden,))
    assert [row[3] for row in lever_table(study, read(run_study)).rows] == ["refused"]
    assert inapplicable(study) is None


def test_bases_are_named_by_step_or_by_settings(run_study, studies):
    found = read(run_study)
    assert base_name(studies.BASELINE, found) == "baseline"
    assert base_name(studies.BF16, found) == "step 1"
    tf32 = studies.with_settings(studies.BASELINE, precision="tf32")
    assert base_name(tf32, found) == "tf32"


def test_a_default_that_the_baseline_departs_from_is_named(run_study, studies):
    """A run of decode starts without a cache, and the cache is the axis's default."""
    start = studies.with_settings(studies.BASELINE, kv_cache="none", checkpointing="sqrt")
    found = msgspec.structs.replace(
        read(run_study), baseline=msgspec.structs.replace(read(run_study).baseline, case=start)
    )
    cached = studies.with_settings(start, kv_cache="static")
    assert base_name(cached, found) == "static KV cache"
    kept = studies.with_settings(start, checkpointing="none", precision="bf16")
    assert base_name(kept, found) == "bf16 + no checkpointing"


def test_the_composition_accumulates(run_study):
    table = composition_table(read(run_study))
    assert [row[1] for row in table.rows] == ["bf16", "compile", "sdpa", "fused-optimizer"]
    product = 1 / (0.1712 * 0.6680 * 0.8910 * 0.9530)
    assert table.rows[-1][5] == pytest.approx(product)
    assert table.note == "Cumulative is the product of the steps' speed-ups."


def test_a_product_that_differs_from_the_whole_is_explained_with_both_numbers(run_study):
    whole = replace(
        run_study.trials[-1], time_ratio=Interval(estimate=0.1042, low=0.1041, high=0.1043)
    )
    table = composition_table(read(replace(run_study, trials=(*run_study.trials[:-1], whole))))
    assert "10.3× here differs from 9.60× above (run in pairs)" in table.note


def test_what_was_not_confirmed_is_said(run_study):
    found = read(run_study)
    # tf32's 3.41× on the baseline is no gain that is left once bf16 is kept.
    assert unconfirmed(run_study, found) == ()
    graphs = replace(
        next(trial for trial in run_study.trials if trial.lever == "cuda-graphs"),
        base=found.best.case,
        stage="screened",
        verdict="inconclusive",
        time_ratio=Interval(estimate=0.5, low=0.4, high=0.6),
    )
    more = replace(run_study, trials=(*run_study.trials, graphs))
    said = "Faster when screened on step 4, not confirmed: cuda-graphs (2.00× (1.67–2.50×))."
    assert unconfirmed(more, found) == (said,)
    unsure = replace(graphs, time_ratio=Interval(estimate=0.98, low=0.92, high=1.05))
    more = replace(run_study, trials=(*run_study.trials, unsure))
    assert unconfirmed(more, found) == (), "an interval that holds 1 is no gain"
    cut = replace(run_study, trials=run_study.trials[:-1])
    assert "the best against the baseline, in its own pairs" in unconfirmed(cut, read(cut))[-1]
    doubtful = replace(run_study.trials[-1], verdict="inconclusive", reason="too wide")
    cut = replace(run_study, trials=(*run_study.trials[:-1], doubtful))
    assert unconfirmed(cut, read(cut))[-1].endswith("the baseline, too wide.")


def test_what_makes_a_base_run_is_no_gain_that_was_confirmed(run_study):
    kept = replace(run_study.trials[6], time_ratio=None, pairs=())
    assert verdict(kept) == "makes it run"


def test_kept_is_said_of_nothing(run_study):
    """A trial confirms a gain, a lever is in the best: one word for both said which it was of neither."""
    text = markdown.render(document(run_study))
    assert "kept" not in text
    assert "gain confirmed" in text
    assert "in the best" in text


def test_a_refusal_is_not_called_a_rejection(run_study):
    assert [verdict(trial) for trial in run_study.trials[1:3]] == ["inconclusive", "refused"]


def test_what_was_foretold_stands_beside_what_was_measured(run_study):
    told = Foretold(time_ratio=Interval(estimate=0.5, low=0.4, high=0.6))
    trials = (msgspec.structs.replace(run_study.trials[0], foretold=told), *run_study.trials[1:])
    study = msgspec.structs.replace(run_study, trials=trials)
    table = lever_table(study, read(study))
    assert table.columns[6].name == "predicted"
    assert table.rows[0][6] == pytest.approx(2.0)


def test_a_gain_that_cannot_be_is_said_and_not_believed(run_study):
    bound = Bound(least_time_ratio=0.9, basis="floor", broken=True)
    broken = msgspec.structs.replace(
        run_study.trials[0], bound=bound, reason="faster than can be: 0.5"
    )
    study = msgspec.structs.replace(run_study, trials=(broken, *run_study.trials[1:]))
    assert impossible(run_study) == ()
    assert impossible(study) == (f"Not believed: {broken.lever} measured faster than can be: 0.5.",)
