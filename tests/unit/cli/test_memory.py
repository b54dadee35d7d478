"""`peakward memory`, through its command line."""

from pathlib import Path

import pytest

from peakward.cli.main import main
from peakward.records import codec
from peakward.records.memory_snapshot import MemoryReport

DATA = Path(__file__).parents[2] / "data" / "snapshots"
TRAIN = str(DATA / "train.pickle.gz")


def test_one_screen_says_what_held_the_memory(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["memory", TRAIN]) == 0
    said = capsys.readouterr().out
    assert "peak 908 MiB allocated, 970 MiB reserved" in said
    assert "optimizer state" in said and "Allocator activity" not in said
    assert len(said.splitlines()) < 60


def test_everything_is_asked_for(capsys):
    assert main(["memory", TRAIN, "--all"]) == 0
    said = capsys.readouterr().out
    assert "Allocator activity" in said and "Memory over the recording" in said


def test_the_record_and_the_files(in_tmp, capsys):
    assert main(["memory", TRAIN, "--json", "--html", "a.html", "--markdown", "a.md"]) == 0
    found = codec.from_json(capsys.readouterr().out.encode(), MemoryReport)
    assert found.devices[0].peak.balance.allocated_bytes == 951_756_288
    assert "<svg" in (in_tmp / "a.html").read_text()
    assert "## GPU 0" in (in_tmp / "a.md").read_text()


def test_what_is_no_snapshot_is_one_line_and_leaves_no_file(in_tmp, capsys):
    Path("x.pickle").write_bytes(b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR.")
    for name in ("x.pickle", "none.pickle", "."):
        assert main(["memory", name, "--html", "a.html"]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("peakward: expected ") and ", got " in said
    assert not Path("a.html").exists()


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_one_snapshot_is_expected(arguments, capsys):
    assert main(["memory", *arguments]) == 2
    assert capsys.readouterr().err.startswith("peakward: ")
