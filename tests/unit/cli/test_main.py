"""Dispatch, and how every ending looks from a shell."""

import importlib
import os
import shlex
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import peakward
from peakward.cli import main as entry
from peakward.cli.main import COMMANDS, main
from peakward.cli.parse import option_names
from peakward.store.database import Store
from peakward.studies.registry import STUDIES


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_module_whose_docstring_is_its_summary(name):
    module = importlib.import_module(f"peakward.cli.{name}")
    assert module.__doc__ == COMMANDS[name].summary
    assert module.Options.__doc__.startswith(COMMANDS[name].summary)
    assert issubclass(module.Options, msgspec.Struct)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name, capsys):
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    module = importlib.import_module(f"peakward.cli.{name}")
    assert f"usage: peakward {name}" in said
    lines = [line.strip("│| ") for line in said.splitlines()]
    for option in option_names(module.Options):
        (line,) = (line for line in lines if line.startswith(f"{option} "))
        assert "  " in line, f"{option} has no docstring"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_empty_default(name, capsys):
    main([name, "--help"])
    assert "(default: )" not in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(argv, capsys):
    assert main(argv) == 0
    said = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name}" in said
        assert command.summary in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_version_is_the_project_s(capsys):
    root = Path(__file__).parents[3]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{declared}\n"
    assert peakward.__version__ == declared


def refused(argv, capsys) -> str:
    """The one line that a refused command line prints."""
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("peakward: expected ") or "Missing value" in said.err
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["benhc"], "expected a command, got 'benhc': perhaps bench"),
        (["bench", "--modle", "tiny"], "got --modle: perhaps --model"),
        (["bench", "--model", "smal"], "expected a model, got 'smal': perhaps small"),
        (["bench", "--model"], "--model"),
        (["run", "--model", "gpt5"], "expected a model, got 'gpt5': perhaps gpt2"),
        (["run", "--lever", "compil"], "expected a lever, got 'compil': perhaps compile"),
        (["run", "--lever", "fp8", "--device", "cpu"], "fp8 needs a CUDA GPU, got a CPU"),
        (
            ["run", "--lever", "cuda-graphs", "--device", "cpu"],
            "cuda-graphs needs a CUDA GPU, got a CPU",
        ),
        (["run", "--baseline", "precision=bf15"], "got 'bf15': perhaps bf16"),
        (["run", "--baseline", "fp8", "--device", "cpu"], "precision fp8 needs a CUDA GPU"),
        (["run", "--batch-size", "1,2"], "expected one case, got a grid of 2"),
        (["run", "--budget", "0"], "expected a time from 1s to 168h for --budget, got '0'"),
        (["run", "--budget", "soon"], "for --budget, got 'soon'"),
        (["bench", "--device", "tpu"], "expected a value of --device, got 'tpu'"),
        (["bench", "--precision", "bf61"], "perhaps bf16"),
        (
            ["bench", "--precision", "fp8", "--device", "cpu"],
            "precision fp8 needs a CUDA GPU, got a CPU",
        ),
        (["bench", "--cuda-graphs", "on", "--device", "cpu"], "needs a CUDA GPU"),
        (["bench", "--batch-size", "0"], "from 1 to 65,536 for --batch-size, got '0'"),
        (["bench", "--batch-size", "-1"], "for --batch-size, got '-1'"),
        (["bench", "--seq-len", "9999999999"], "for --seq-len"),
        (["bench", "--n-heads", "3"], "expected heads that divide d_model"),
        (["bench", "--warmup", "-1"], "for --warmup, got '-1'"),
        (["bench", "--warmup", "soon"], "for --warmup, got 'soon'"),
        (["bench", "--steps", "0"], "for --steps, got '0'"),
        (["bench", "--timeout", "0"], "for --timeout"),
        (["bench", "--lever", "tf32,bf16"], "expected one precision, got 'tf32' and 'bf16'"),
        (["bench", "--html", "no/such/folder/a.html"], "expected a file in an existing folder"),
        (["study", "warmpu"], "expected a study, got 'warmpu': perhaps warmup"),
        (["study", "warmup", "--all"], "expected one study or --all"),
        (["study", "warmup", "--precision", "fp4"], "a value of --precision, got 'fp4'"),
        (
            ["study", "warmup", "--precision", "bf16"],
            "expected no --precision for warmup, got bf16",
        ),
        (["study", "warmup", "--memory-limit", "2"], "expected no --memory-limit for warmup"),
        (["study", "compile", "--precision", "bf16"], "expected no --precision for compile"),
        (["study", "compile", "--memory-limit", "2"], "expected no --memory-limit for compile"),
        (["study", "compile", "--seq-len", "8,16"], "at most 1 of --seq-len for compile, got 8,16"),
        (["study", "scaling", "--model", "tiny"], "expected no --model for scaling, got tiny"),
        (["study", "hierarchy", "--precision", "bf16"], "expected no --precision for hierarchy"),
        (["study", "scaling", "--seq-len", "8"], "expected no --seq-len for scaling, got 8:"),
        (["study", "scaling", "--batch-size", "8"], "expected no --batch-size for scaling, got 8:"),
        (["study", "scaling", "--timeout", "9m"], "expected no --timeout for scaling, got 9m:"),
        (
            ["study", "scaling", "--n-layers", "2"],
            "expected no --model for scaling, got --n-layers 2",
        ),
        (
            ["study", "checkpointing", "--precision", "fp32,bf16"],
            "at most 1 of --precision for checkpointing, got fp32,bf16",
        ),
        (
            ["study", "throughput", "--precision", "fp8", "--device", "cpu"],
            "precision fp8 needs a CUDA GPU, got a CPU",
        ),
        (
            ["study", "warmup", "--model", "gpt2", "--seq-len", "2048"],
            "expected --seq-len of at most 1,024 for the model gpt2, got 2,048",
        ),
        (["devices", "prob"], "expected an action, got 'prob': perhaps probe"),
        (["devices", "probe", "--device", "tpu"], "a value of --device"),
        (["memory"], "expected a snapshot, got none"),
        (["compare", "one"], "expected two studies to compare, got 1"),
        (["compare", "a", "b", "--threshold", "x"], "for --threshold, got 'x'"),
        (["compare", "a", "b"], "peakward.db"),
        (["report"], "peakward.db"),
        (["report", "--list"], "peakward.db"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_and_leaves_nothing(argv, line, capsys, in_tmp):
    assert line in refused(argv, capsys)
    assert list(in_tmp.iterdir()) == []


def test_compile_without_a_compiler_is_refused_where_asked_for(monkeypatch, capsys, in_tmp):
    monkeypatch.setenv("CXX", "no-such-compiler")
    for argv in (["run", "--lever", "compile"], ["bench", "--compile", "default"]):
        assert "needs a C++ compiler" in refused([*argv, "--device", "cpu"], capsys)


def test_a_dry_run_says_what_it_leaves_out(capsys, in_tmp):
    argv = ["bench", "--dry-run", "--precision", "fp32,fp8", "--device", "cpu"]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "1 measurement, 0 of them stored already" in said
    assert "Left out where it cannot apply: precision fp8 needs a CUDA GPU, got a CPU." in said


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"not a database at all, but text", "notes.db"), (b"SQLite format 3\0garbage", "notes.db")],
)
def test_a_database_that_is_none_of_ours_is_refused_and_left_alone(content, line, capsys, in_tmp):
    db = in_tmp / "notes.db"
    db.write_bytes(content)
    for argv in (["bench", "--db", "notes.db", "--device", "cpu"], ["report", "--db", "notes.db"]):
        assert line in refused(argv, capsys)
    assert db.read_bytes() == content


def test_a_database_of_a_newer_peakward_is_refused(capsys, in_tmp):
    Store.open(in_tmp / "peakward.db").close()
    with closing(sqlite3.connect("peakward.db")) as connection, connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    for argv in (["bench", "--device", "cpu"], ["report"], ["compare", "last", "last"]):
        assert "99" in refused(argv, capsys)


def test_the_list_of_studies_keeps_names_and_questions_apart(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["study"]) == 0
    lines = capsys.readouterr().out.splitlines()[-len(STUDIES) :]
    assert [line.split()[0] for line in lines] == list(STUDIES)
    columns = {
        line.index(each.question) for line, each in zip(lines, STUDIES.values(), strict=True)
    }
    assert len(columns) == 1


class Ending(msgspec.Struct):
    """Stands for a command module: ends as it is told to."""

    error: BaseException
    Options: type = msgspec.defstruct("Options", [])

    def main(self, options, command):
        raise self.error


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_says_whether_anything_is_kept(name, monkeypatch, capsys):
    monkeypatch.setattr(entry.importlib, "import_module", lambda _: Ending(KeyboardInterrupt()))
    assert main([name]) == 130
    said = capsys.readouterr().err
    assert said.startswith("peakward: interrupted")
    assert ("run the same command to resume" in said) == COMMANDS[name].measures


@pytest.mark.parametrize(
    ("more", "again"),
    [
        (("--html", "a.html"), "run the same command, with --force, to resume"),
        (("--markdown=a.md",), "run the same command, with --force, to resume"),
        (("--html", "a.html", "--force"), "run the same command to resume"),
    ],
)
def test_what_resumes_says_that_it_must_write_over_its_files(more, again, monkeypatch, capsys):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "_dispatch", interrupted)
    assert main(["bench", *more]) == 130
    assert again in capsys.readouterr().err


def test_an_error_of_ours_in_the_middle_of_a_command_is_one_line(monkeypatch, capsys):
    error = peakward_error("expected this, got that", exit_code=1)
    monkeypatch.setattr(entry.importlib, "import_module", lambda _: Ending(error))
    assert main(["report"]) == 1
    assert capsys.readouterr().err == "peakward: expected this, got that\n"


def peakward_error(message, exit_code):
    from peakward.records.errors import PeakwardError

    return PeakwardError(message, exit_code=exit_code)


def test_a_closed_pipe_ends_it_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "peakward", "devices", "--sources"],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 141
    assert done.stderr == b""


def run_to(stdout: str, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`peakward …` by a shell that sends its output there."""
    line = shlex.join([sys.executable, "-m", "peakward", *argv])
    return subprocess.run(
        ["sh", "-c", f"{line} {stdout}"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("argv", [["--help"], ["devices"], ["devices", "--json"]])
def test_a_full_disk_is_one_line_and_no_regression(argv):
    done = run_to("> /dev/full", *argv)
    assert done.returncode == 2
    assert done.stderr == (
        "peakward: expected standard output to be usable, got: No space left on device\n"
    )


def test_a_closed_output_is_refused():
    done = run_to(">&-", "devices")
    assert done.returncode == 2
    assert done.stderr == "peakward: expected an open standard output, got a closed one\n"


def test_an_output_without_utf_8_gets_what_it_can_show():
    done = run_to("", "devices", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "h100" in done.stdout


words = st.one_of(
    st.sampled_from(
        [
            *("--dry-run", "--model", "tiny", "small", "--batch-size", "1,2", "0", "--precision"),
            *("bf16", "fp8", "--lever", "sdpa", "--baseline", "compile=default", "--budget", "5m"),
            *("--memory-limit", "1", "--n-heads", "3", "--seq-len", "16", "--steps", "--warmup"),
            *("--pass", "forward", "--device", "cpu", "cuda", "--compile", "--attention"),
        ]
    ),
    st.text(max_size=6).filter(lambda text: "\0" not in text),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["run", "bench"]), line=st.lists(words, max_size=8))
def test_no_line_of_words_ends_in_a_traceback(name, line, in_tmp, capsys):
    assert main([name, "--dry-run", *line]) in (0, 2)
    said = capsys.readouterr().err
    assert said.count("\n") <= 1
    assert list(in_tmp.iterdir()) == []
