import subprocess
import sys

from peakward.report import documents, run, study


def test_a_run_has_its_own_report(run_study, bench_study):
    assert documents.document(run_study) == run.document(run_study)
    assert documents.document(bench_study) == study.document(bench_study)


def test_building_a_document_loads_no_view():
    code = (
        "import sys, peakward.report.documents, peakward.report.comparison\n"
        "print(*{'rich', 'jinja2', 'torch', 'xml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
