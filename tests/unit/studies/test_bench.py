"""The free grid: a row a measurement, whatever came of it."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.records.case import OperatorCase
from peakward.records.measurement import Outputs, Protocol
from peakward.report.columns import name_columns
from peakward.report.format import format_spread
from peakward.studies.bench import bench, table
from peakward.studies.cases import model_case
from peakward.studies.readings import Readings

PROTOCOLS = (Protocol(warmup_steps=0), Protocol())


@pytest.fixture
def grid():
    return [
        model_case(model(size), 4, 512, "train_step", "cuda", precision=precision)
        for size in ("small", "2.7B")
        for precision in ("fp32", "bf16")
    ]


def rows(study):
    (table,) = [each for each in study.tables if each.title == "Measurements"]
    names = [each.name for each in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def test_a_row_for_every_case_and_protocol_in_order(grid, setting, lab):
    study = bench(lab(setting()), grid, PROTOCOLS, command="peakward bench")
    found = [(row["model"], row["precision"], row["warm-up steps"]) for row in rows(study)]
    assert found == [
        (size, precision, warmup)
        for size in ("small", "2.7B")
        for precision in ("fp32", "bf16")
        for warmup in ("0", "until steady")
    ]


def test_the_figures_of_a_row(grid, setting, lab):
    study = bench(lab(setting()), grid[:1], PROTOCOLS[1:], command="peakward bench")
    (row,), (made,) = rows(study), study.measurements
    summary = made.summary
    assert row["status"] == "ok"
    assert row["median (95% interval)"] == format_spread(summary.median_s, "s")
    assert (row["mean"], row["standard deviation"]) == (summary.mean_s, summary.sd_s)
    assert row["throughput"] == pytest.approx(4 * 512 / summary.median_s.estimate)
    assert row["model FLOP/s"] == pytest.approx(1e12)
    assert row["peak memory"] == made.memory.peak_allocated_bytes
    assert row["verdict"] == "stable"


def test_what_tells_rows_apart_names_them_in_a_table_too_wide_for_a_terminal(setting, lab):
    parts = ({}, {"norm": "fused"}, {"norm": "fused", "rope": "fused", "swiglu": "fused"})
    cases = [model_case(model("small"), 4, 512, "train_step", "cuda", **each) for each in parts]
    study = bench(lab(setting()), cases, PROTOCOLS[1:], command="peakward bench")
    (table,) = [each for each in study.tables if each.title == "Measurements"]
    assert [row["own kernels"] for row in rows(study)] == [None, "norm", "norm, RoPE, SwiGLU"]
    assert "own kernels" in {table.columns[i].name for i in name_columns(table)}


def test_out_of_memory_keeps_its_row(grid, setting, lab):
    overrule = lambda case: "oom" if case.model.name == "2.7B" else None  # noqa: E731
    study = bench(lab(setting(), overrule=overrule), grid, PROTOCOLS[1:], command="peakward bench")
    last = rows(study)[-1]
    assert (last["model"], last["status"], last["median (95% interval)"], last["throughput"]) == (
        "2.7B",
        "oom",
        None,
        None,
    )
    assert study.complete


def test_configurations_of_one_workload_are_compared(grid, setting, lab):
    study = bench(lab(setting()), grid[:2], PROTOCOLS[1:], command="peakward bench")
    (said,) = study.conclusions
    assert said.text.startswith(
        "small 4 × 512 train_step, warm-up until steady: of 2 configurations bf16,"
    )
    figures = {each.quantity: each.value for each in said.evidence}
    assert figures["fastest over slowest"] == pytest.approx(8.0)
    low, high = (figures[f"fastest over slowest, {end} end"] for end in ("low", "high"))
    assert low < 8.0 < high
    assert f"at 8.00× ({low:.2f}× to {high:.2f}×) the speed of fp32" in said.text


def test_what_is_no_kernel_has_a_column_of_its_own(setting, lab):
    cases = [
        model_case(model("small"), 1, 512, "decode", "cuda", **each)
        for each in ({}, {"kv_cache": "none"}, {"norm": "fused"})
    ]
    study = bench(lab(setting()), cases, PROTOCOLS[1:], command="peakward bench")
    told = [(row["own kernels"], row["other settings"]) for row in rows(study)]
    assert told == [(None, None), (None, "no KV cache"), ("norm", None)]


def test_no_winner_where_the_intervals_overlap(setting, lab):
    cases = [
        model_case(model("small"), 4, 512, "forward", "cuda", attention=attention)
        for attention in ("naive", "sdpa")
    ]
    study = bench(lab(setting()), cases, PROTOCOLS[:1], command="peakward bench")
    (said,) = study.conclusions
    assert said.text == (
        "small 4 × 512 forward, 0 warm-up steps: none of 2 configurations is measurably faster than "
        "another."
    )


def test_one_warm_up_step_is_one(setting, lab):
    cases = [
        model_case(model("small"), 4, 512, "forward", "cuda", attention=attention)
        for attention in ("naive", "sdpa")
    ]
    once = msgspec.structs.replace(PROTOCOLS[0], warmup_steps=1)
    study = bench(lab(setting()), cases, (once,), command="peakward bench")
    assert study.conclusions[0].text.startswith("small 4 × 512 forward, 1 warm-up step: ")


def test_settings_that_never_vary_are_in_the_note(grid, setting, lab):
    study = bench(lab(setting()), grid, PROTOCOLS[1:], command="peakward bench")
    (made,) = [each for each in study.tables if each.title == "Measurements"]
    names = [column.name for column in made.columns]
    assert names[:4] == ["model", "workload", "precision", "status"]
    assert made.note == (
        "In every row: attention naive, compile none, CUDA graphs no, optimizer adamw-foreach, "
        "checkpointing none, warm-up steps until steady."
    )


def test_the_same_case_twice_is_measured_once(grid, setting, lab):
    study = bench(lab(setting()), grid[:1] * 2, PROTOCOLS[1:], command="peakward bench")
    assert len(study.measurements) == len(rows(study)) == 1


def test_an_operator_has_a_row_too(setting, lab):
    case = OperatorCase(batch_size=1, n_heads=2, seq_len=64, head_dim=16, device="cuda")
    study = bench(lab(setting()), [case], PROTOCOLS[1:], command="peakward bench")
    assert rows(study)[0]["model"].startswith("attention 1 × 2 × 64 × 16")


def test_the_callers_notes_are_kept(grid, setting, lab):
    study = bench(lab(setting()), grid[:1], PROTOCOLS, command="c", notes=["tf32 needs a CUDA GPU"])
    assert "tf32 needs a CUDA GPU" in study.notes


def test_the_fastest_of_a_workload_names_what_was_not_timed(grid, setting, lab):
    case = msgspec.structs.replace(
        grid[0], configuration=msgspec.structs.replace(grid[0].configuration, precision="tf32")
    )
    overrule = lambda each: "oom" if each.configuration.precision == "tf32" else None  # noqa: E731
    plan = (*grid[:2], case)
    study = bench(lab(setting(), overrule=overrule), plan, PROTOCOLS[1:], command="peakward bench")
    (said,) = study.conclusions
    assert " is the fastest of those timed, at 8.00× " in said.text
    assert "by intervals within one process of each; not timed: tf32 " in said.text
    assert said.text.endswith("(out of memory).")


def test_a_row_says_what_is_wrong_with_its_output(grid, setting, lab):
    study = bench(lab(setting()), grid[:2], PROTOCOLS[1:], command="peakward bench")
    assert "output" not in rows(study)[0]
    good, bad = study.measurements
    outputs = Outputs(n_values=1000, n_nonfinite=15, repeats=False)
    readings = Readings((good, msgspec.structs.replace(bad, outputs=outputs)))
    found = table([(each.case, each.protocol) for each in study.measurements], readings)
    place = [each.name for each in found.columns].index("output")
    assert [row[place] for row in found.rows] == [
        None,
        "1.5% of the output's values are NaN or infinite; the output changes from call to call on the same "
        "input",
    ]
