"""The pages of stored studies say what today's code says of their records: no sentence goes stale."""

from pathlib import Path

import pytest

from peakward.cli.report import told_today
from peakward.records import codec
from peakward.records.study import Study
from peakward.report import documents, markdown

RESULTS = Path(__file__).parents[2] / "results"
STUDIES = ("attention", "attention-parts", "data-loading", "flash", "fusion")
RECORDS = sorted(
    path
    for path in RESULTS.glob("*-study-*.json")
    if path.stem.split("-study-")[1].removesuffix("-bf16").removesuffix("-fp32") in STUDIES
)


def sentences(page: str) -> list[str]:
    """Of the opening: what stands before the device is named."""
    opening, _, _ = page.partition("\ndevice: ")
    return [line for line in opening.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_page_says_what_todays_code_says(path):
    study = codec.from_json(path.read_bytes(), Study)
    today = sentences(markdown.render(documents.document(told_today(study))))
    stored = sentences(path.with_suffix(".md").read_text())
    again = f"peakward report {path.name} --markdown {path.stem}.md --force"
    assert stored == today, f"expected today's sentences, got others: {again}"


def test_every_page_of_these_studies_is_held_to_it():
    assert len(RECORDS) >= 8
