"""A case's module, built from its source."""

import msgspec
import pytest

from peakward.lab.models.module_source import build, files_fingerprint, fingerprint
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


@pytest.fixture
def package(in_tmp):
    """pack.model imports pack.layers and, inside a function, helper; other is imported by nobody."""
    (in_tmp / "pack").mkdir()
    (in_tmp / "pack" / "__init__.py").write_text("")
    (in_tmp / "pack" / "model.py").write_text(
        "import torch\nfrom .layers import x\ndef build():\n    import helper\n"
    )
    for name in ("pack/layers", "helper", "other"):
        (in_tmp / f"{name}.py").write_text("x = 1")
    return in_tmp


@pytest.mark.parametrize("changed", ["pack/model", "pack/layers", "pack/__init__", "helper"])
def test_it_changes_with_every_file_that_the_module_is_made_of(changed, package):
    before = files_fingerprint("pack.model")
    path = package / f"{changed}.py"
    path.write_text(path.read_text() + "\n# changed")
    assert files_fingerprint("pack.model") != before


def test_it_stays_with_the_others(package):
    before = files_fingerprint("pack.model")
    (package / "other.py").write_text("x = 2")
    assert files_fingerprint("pack.model") == before


def test_an_installed_module_is_known_by_its_version(in_tmp):
    assert files_fingerprint("msgspec.json") != files_fingerprint("tyro.conf")


def test_modules_that_import_one_another_end(in_tmp):
    (in_tmp / "a.py").write_text("import b")
    (in_tmp / "b.py").write_text("import a")
    assert len(files_fingerprint("a")) == 16


def test_a_package_without_an_init_is_followed(in_tmp):
    (in_tmp / "space").mkdir()
    (in_tmp / "space" / "model.py").write_text("x = 1")
    before = files_fingerprint("space.model")
    (in_tmp / "space" / "model.py").write_text("x = 2")
    assert files_fingerprint("space.model") != before


def test_no_python_is_refused(in_tmp):
    (in_tmp / "bad.py").write_text("def (")
    with pytest.raises(
        PeakwardError, match=r"expected Python that can be imported, got .* in bad.py:1"
    ):
        files_fingerprint("bad")
