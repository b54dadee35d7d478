"""A case's module, built from its source."""

import msgspec
import pytest

from peakward.lab.models.module_source import build, fingerprint
from peakward.records.errors import PeakwardError


def test_a_case_is_built_from_its_source(make_module_case):
    assert type(build(make_module_case("py:tiny_gpt:build")).module).__name__ == "GPT"


def test_a_source_that_has_changed_is_refused(make_module_case, at_user_modules):
    case = make_module_case("py:tiny_gpt:build")
    path = at_user_modules / "tiny_gpt.py"
    path.write_text(path.read_text() + "\n# changed")
    assert fingerprint(case.source) != case.fingerprint
    with pytest.raises(PeakwardError, match="its files have changed since; start again"):
        build(case)


def test_a_live_module_has_no_source(make_module_case):
    case = msgspec.structs.replace(make_module_case("py:tiny_gpt:build"), source="live:GPT")
    with pytest.raises(PeakwardError, match="got live:GPT: it lived in another process"):
        build(case)


@pytest.mark.parametrize(
    "source", ["py:", "py::build", "py:../model:build", "py:model", "py:model:"]
)
def test_what_names_no_factory_is_refused_before_its_files_are_looked_for(source):
    with pytest.raises(PeakwardError, match=r"expected py:package\.module:factory"):
        fingerprint(source)
