"""Reports of studies: of any but `run` by its own tables, plots and conclusions, and of several together."""

import subprocess
import sys

import msgspec

from peakward.records.study import Evidence, Plot, Series
from peakward.report import run, study
from peakward.report.document import Items, Note, PlotBlock, TableBlock
from peakward.report.study import of_any_study


def section(shown, title):
    return next((each for each in shown.sections if each.title == title), None)


def test_conclusions_come_first_and_an_early_end_is_said(bench_study):
    shown = of_any_study(bench_study)
    assert isinstance(shown.blocks[0], Note)
    assert shown.blocks[1] == Items(texts=(bench_study.conclusions[0].text,))


def test_an_oom_is_a_result_with_its_reason(bench_study):
    (block,) = section(of_any_study(bench_study), "Cases that did not run").blocks
    assert block.table.rows == (
        (
            "2.7B 4 × 512 forward, fp32, naive attention, eager",
            "oom",
            "the process needed more than the limit of 12.0 GiB",
        ),
    )


def test_every_number_of_a_conclusion_is_traced(bench_study):
    (block,) = section(of_any_study(bench_study), "Evidence").blocks
    assert block.table.rows == (("2.7B over small, time", "28.7×", "m-1, m-4"),)


def test_the_evidence_says_a_conclusion_of_several_numbers_once(bench_study):
    (first,) = bench_study.conclusions
    two = msgspec.structs.replace(
        first,
        text="small takes 2 cases.",
        evidence=tuple(
            Evidence(quantity=name, value=2, unit="count", from_ids=(digits, "small"))
            for name, digits in (("cases", "0123456789abcdef" * 2), ("models", "fedcba98" * 5))
        ),
    )
    bare = msgspec.structs.replace(first, text="Nothing is counted.", evidence=())
    shown = of_any_study(msgspec.structs.replace(bench_study, conclusions=(first, bare, two)))
    tables = [block.table for block in section(shown, "Evidence").blocks]
    assert [each.title for each in tables] == [first.text, two.text]
    assert tables[1].rows == (
        ("cases", "2", "0123456789ab, small"),
        ("models", "2", "fedcba98fedc, small"),
    )


def test_its_own_tables_and_plots_are_shown(bench_study):
    shown = of_any_study(bench_study)
    assert section(shown, "Results").blocks == (
        TableBlock(table=bench_study.tables[0], sortable=True),
    )
    assert [block.plot for block in section(shown, "Plots").blocks] == list(bench_study.plots)


def test_a_plot_of_nothing_is_left_out(bench_study):
    empty = Plot(
        title="t",
        kind="lines",
        x_label="x",
        y_label="y",
        x_unit="count",
        y_unit="s",
        series=(Series(name="a", points=()),),
    )
    shown = of_any_study(msgspec.structs.replace(bench_study, plots=(empty, *bench_study.plots)))
    assert PlotBlock(plot=empty) not in section(shown, "Plots").blocks


def test_sections_without_content_are_left_out(bench_study):
    bare = msgspec.structs.replace(
        bench_study,
        complete=True,
        measurements=bench_study.measurements[:1],
        plots=(),
        notes=(),
        conclusions=(),
    )
    titles = [each.title for each in of_any_study(bare).sections]
    assert titles == ["Results", "Reproduce", "Conventions", "Environment"]
    assert of_any_study(bare).headline == "1 case on AMD Ryzen 7 7840U"


def test_the_headline_counts_what_failed(bench_study):
    assert of_any_study(bench_study).headline == "6 cases on AMD Ryzen 7 7840U, 1 of them not ok"


def test_a_run_has_its_own_report(run_study, bench_study):
    assert study.document(run_study) == run.document(run_study)
    assert study.document(bench_study) == study.of_any_study(bench_study)


def test_building_a_document_loads_no_view():
    code = (
        "import sys, peakward.report.study, peakward.report.comparison\n"
        "print(*{'rich', 'jinja2', 'torch', 'xml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
