"""Reports to files: whole, and never over another file unasked."""

import json
import os
from pathlib import Path

import pytest

from peakward.cli import output
from peakward.cli.main import main
from peakward.cli.vocabulary import ResultOptions
from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.study import Study


def options(**given) -> ResultOptions:
    return ResultOptions(**given)


@pytest.fixture
def study(make_study, make_measurement) -> Study:
    return make_study(make_measurement(8), make_measurement(16, None))


def test_the_files_asked_for_are_written_and_nothing_else(study, in_tmp, capsys):
    files = output.targets(options(html="a.html", markdown="a.md"))
    output.show_study(study, files, as_json=False)
    assert sorted(path.name for path in in_tmp.iterdir()) == ["a.html", "a.md"]
    assert Path("a.html").read_text().lower().startswith("<!doctype html>")
    assert study.title in Path("a.md").read_text()
    said = capsys.readouterr()
    assert study.title in said.out
    assert said.err == "a.html written\na.md written\n"


@pytest.mark.parametrize(("columns", "widest"), [("0", 100), (None, 100), ("60", 60)])
def test_a_pipe_is_as_wide_as_columns_says_where_it_does(
    columns, widest, study, capsys, monkeypatch
):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    output.show_study(study, (), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == study.title
    assert widest - 10 < max(map(len, lines)) <= widest


def test_json_is_the_record_and_nothing_else(study, capsysbinary):
    output.show_study(study, (), as_json=True)
    said = capsysbinary.readouterr()
    assert codec.from_json(said.out, Study) == study
    assert json.loads(said.out)["schema_version"] == codec.SCHEMA_VERSION
    assert said.err == b""


def test_a_file_that_exists_is_kept_unless_forced(study, in_tmp):
    Path("a.md").write_text("mine")
    with pytest.raises(PeakwardError, match=r"got 'a\.md': overwrite it with --force"):
        output.targets(options(markdown="a.md"))
    assert Path("a.md").read_text() == "mine"
    output.show_study(study, output.targets(options(markdown="a.md", force=True)), as_json=False)
    assert study.title in Path("a.md").read_text()


def test_a_file_that_appeared_meanwhile_is_kept_too(study, in_tmp):
    files = output.targets(options(markdown="a.md"))
    Path("a.md").write_text("mine")
    with pytest.raises(PeakwardError, match="--force"):
        output.show_study(study, files, as_json=False)
    assert Path("a.md").read_text() == "mine"


@pytest.mark.parametrize("place", ["none/a.html", ".", "file/a.html"])
def test_a_place_that_is_none_is_refused_before_anything_runs(place, in_tmp):
    Path("file").touch()
    with pytest.raises(PeakwardError, match="expected a file in an existing folder"):
        output.targets(options(html=place))


def test_a_failed_write_leaves_neither_file_nor_scrap(study, in_tmp, monkeypatch):
    files = output.targets(options(markdown="a.md"))

    def full(_self, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(PeakwardError, match=r"expected to write a\.md, got: No space left"):
        output.show_study(study, files, as_json=False)
    assert list(in_tmp.iterdir()) == []


def test_with_force_too_only_a_regular_file_is_replaced(in_tmp):
    os.mkfifo("pipe")
    for place in ("pipe", "/dev/null"):
        with pytest.raises(PeakwardError, match="expected a regular file, got"):
            output.targets(options(html=place, force=True))


def test_a_link_is_followed_and_stays(study, in_tmp):
    Path("real").mkdir()
    Path("real/a.md").write_text("old")
    Path("a.md").symlink_to("real/a.md")
    output.show_study(study, output.targets(options(markdown="a.md", force=True)), as_json=False)
    assert Path("a.md").is_symlink()
    assert study.title in Path("real/a.md").read_text()
    assert [path.name for path in Path("real").iterdir()] == ["a.md"]


@pytest.mark.parametrize("second", ["a", "./a", "link"])
def test_one_file_for_two_views_is_refused(second, in_tmp):
    Path("link").symlink_to("a")
    with pytest.raises(PeakwardError, match="expected a file for each view, got a"):
        output.targets(options(html="a", markdown=second))


def test_a_dry_run_checks_the_places_too(in_tmp, capsys):
    for command in ("bench", "run"):
        argv = [command, "--dry-run", "--device", "cpu", "--html", "none/a.html"]
        assert main(argv) == 2
        assert "expected a file in an existing folder" in capsys.readouterr().err
