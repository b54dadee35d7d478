"""Traces of programs with a planted fault, and of the same without, read and judged anew.

`python benchmarks/planted_faults.py --device cpu --out ANY --keep FOLDER` wrote them.
"""

from pathlib import Path

import pytest

from faults.reading import of_trace
from peakward.diagnose.examine import examine

TRACES = Path(__file__).parents[1] / "data" / "traces" / "planted"


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("decoder", []),
        ("gpt-2", []),
        ("formulas-0", []),
        ("formulas-3", ["BW001"]),
        ("optimizer-0", []),
        ("optimizer-1", ["BW003"]),
        ("attention-by-formulas-0", []),
        ("attention-by-formulas-1", ["ATTN001"]),
        ("attention-by-formulas-4", ["ATTN001"]),
    ],
)
def test_what_is_found(name, codes):
    found = examine(of_trace(TRACES / f"{name}.json.gz").diagnosis_input(name))
    assert [each.code for each in found.findings] == codes
