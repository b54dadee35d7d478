"""The pages of stored studies say what today's code says of their records: no sentence goes stale."""

import pytest

from peakward.cli.report import told_today
from peakward.records import codec
from peakward.records.study import Study
from peakward.report import markdown
from peakward.report.study import document
from stored_results import index

STUDIES = (
    "attention",
    "attention-parts",
    "collectives",
    "data-loading",
    "flash",
    "fusion",
    "kernels",
    "memory",
    "parallel",
)
RECORDS = [each for each in index().of("study") if each.subject.split()[1] in STUDIES]


def sentences(page: str) -> list[str]:
    """Of the opening: what stands before the device is named."""
    opening, _, _ = page.partition("\ndevice: ")
    return [line for line in opening.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("result", RECORDS, ids=lambda each: each.name)
def test_the_page_says_what_todays_code_says(result):
    study = codec.from_json(result.read(), Study)
    today = sentences(markdown.render(document(told_today(study))))
    stored = sentences(result.path("md").read_text())
    again = f"peakward report {result.name}.json --markdown {result.name}.md --force"
    assert stored == today, f"expected today's sentences, got others: {again}"


def test_every_page_of_these_studies_is_held_to_it():
    assert len(RECORDS) >= 9
