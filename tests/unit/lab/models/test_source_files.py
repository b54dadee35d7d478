"""Which files a fingerprint is of."""

import pytest

from peakward.lab.models.source_files import fingerprint
from peakward.records.errors import PeakwardError


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
    before = fingerprint("pack.model")
    path = package / f"{changed}.py"
    path.write_text(path.read_text() + "\n# changed")
    assert fingerprint("pack.model") != before


def test_it_stays_with_the_others(package):
    before = fingerprint("pack.model")
    (package / "other.py").write_text("x = 2")
    assert fingerprint("pack.model") == before


def test_an_installed_module_is_known_by_its_version(in_tmp):
    assert fingerprint("msgspec.json") != fingerprint("tyro.conf")


def test_modules_that_import_one_another_end(in_tmp):
    (in_tmp / "a.py").write_text("import b")
    (in_tmp / "b.py").write_text("import a")
    assert len(fingerprint("a")) == 16


def test_a_package_without_an_init_is_followed(in_tmp):
    (in_tmp / "space").mkdir()
    (in_tmp / "space" / "model.py").write_text("x = 1")
    before = fingerprint("space.model")
    (in_tmp / "space" / "model.py").write_text("x = 2")
    assert fingerprint("space.model") != before


def test_no_python_is_refused(in_tmp):
    (in_tmp / "bad.py").write_text("def (")
    with pytest.raises(
        PeakwardError, match=r"expected Python that can be imported, got .* in bad.py:1"
    ):
        fingerprint("bad")
