"""Reports by way of `nsys export`, here a script that stands in for it."""

import sqlite3

import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.readers import nsys_export


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(b"NVIDIA")
    return path


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """fake_nsys(script): an `nsys` that runs it; its arguments go to the file that this gives."""
    folder = tmp_path / "bin"
    folder.mkdir()
    said = tmp_path / "arguments"

    def make(script):
        program = folder / "nsys"
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return said

    return make


def test_a_report_is_exported_and_read(report, fake_nsys, tmp_path):
    made = tmp_path / "made.sqlite"
    with sqlite3.connect(made) as connection:
        connection.execute(
            "CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid)",
        )
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (1, 5, 59, 'step', 16777217)")
    connection.close()
    said = fake_nsys(f'cp "{made}" "$5"')
    table = nsys_export.read_report(report)
    assert (table.source, table.names) == ("my run.nsys-rep", ("step",))
    *options, export, named = said.read_text().splitlines()
    assert options == ["export", "--type", "sqlite", "--output"]
    assert named == str(report)
    assert not (tmp_path / export).exists()


def test_without_nsys(report, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PeakwardError) as caught:
        nsys_export.read_report(report)
    message = str(caught.value)
    assert message.startswith("expected `nsys` on PATH to export the report, got none for ")
    assert f"`nsys export --type sqlite --output 'my run.sqlite' '{report}'`" in message


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo line; echo 'Importer error: version'; exit 3",
            'status 3 ("Importer error: version")',
        ),
        ("exit 1", 'status 1 ("nothing said")'),
        ("echo done", 'status 0 ("done")'),
        (r"printf '\033[2Jbad\n'; exit 1", 'status 1 (" [2Jbad")'),
    ],
)
def test_an_export_that_fails(report, fake_nsys, script, said):
    fake_nsys(script)
    with pytest.raises(PeakwardError) as caught:
        nsys_export.read_report(report)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_export_that_is_no_database(report, fake_nsys):
    fake_nsys('echo hello > "$5"')
    with pytest.raises(PeakwardError, match=r"no SQLite database .* at .*my run\.nsys-rep"):
        nsys_export.read_report(report)


def test_an_nsys_that_does_not_run(report, fake_nsys, tmp_path):
    fake_nsys("")
    (tmp_path / "bin" / "nsys").write_bytes(b"\x7fELF nonsense")
    with pytest.raises(PeakwardError, match="expected an `nsys` that runs, got "):
        nsys_export.read_report(report)


def test_no_report(tmp_path, fake_nsys):
    fake_nsys("exit 1")
    with pytest.raises(PeakwardError, match="expected an Nsight Systems report, got a path that"):
        nsys_export.read_report(tmp_path / "none.nsys-rep")
    with pytest.raises(PeakwardError, match="got a folder"):
        nsys_export.read_report(tmp_path)
