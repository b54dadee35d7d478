"""The page of all rules."""

from pathlib import Path

import pytest

from peakward.diagnose.handbook import page
from peakward.diagnose.rulebook import PARTS, RULES

PAGE = Path(__file__).parents[3] / "docs" / "findings.md"


def test_the_page_in_docs_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "write it again: python -m peakward.diagnose.handbook > docs/findings.md"
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_says_every_part(rule):
    assert list(rule.told) == list(PARTS)
    assert rule.title and not rule.title.endswith(".")
