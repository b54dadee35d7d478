"""The `peakward` command: finds the named command's module, runs it, turns errors into one line."""

import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from peakward.records.errors import PeakwardError, look_up, printable

REFUSED = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells give it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE."""


class Command(NamedTuple):
    """A line of `peakward --help`."""

    summary: str
    """The first line of the module's docstring (a test compares them)."""
    measures: bool
    """Whether an interruption leaves measurements that the same command takes up again."""


COMMANDS = {
    "run": Command("Find what makes a model faster here: baseline, levers, verdicts.", True),
    "bench": Command("Measure a grid of cases.", True),
    "study": Command("Carry out a study: its grid, tables, plots and conclusions.", True),
    "trace": Command("Show where a trace's time went: PyTorch profiler or Nsight Systems.", False),
    "memory": Command("Show what held a GPU's memory: allocator snapshots of torch.", False),
    "plan": Command("Predict time, memory, cost and levers on hardware not at hand.", False),
    "debug": Command("Watch a training run, and find what made its first NaN or infinity.", False),
    "generate": Command("Continue a prompt with a real model, and say how fast that was.", False),
    "devices": Command("List known devices, probe this machine, or measure its rates.", False),
    "compare": Command("Compare two studies case by case; exit 1 on a regression.", False),
    "report": Command("Show a stored study again: terminal, Markdown, HTML or JSON.", False),
}
"""Each is a module of this package with `Options` and `main(options, command) -> int`; `command` is
the line that the user wrote, for the record."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0, 1 (`compare`), 2 (bad input), 130, 141.

    Output that nothing takes is 2 as well: as a traceback it would end with 1.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:
        return _complain("expected an open standard output, got a closed one")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without UTF-8 then shows "?" where it lacks a character.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _ended(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        _drop_output()
        place = error.filename or "standard output"
        return _complain(f"expected {place} to be usable, got: {error.strerror or error}")
    return code


def overview() -> str:
    """Returns the text of `peakward --help`."""
    lines = [f"  {name:<9} {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        (
            "usage: peakward COMMAND [OPTIONS]",
            "",
            "How fast should your Transformer run on this hardware, why doesn't it, and",
            "which lever gets you there: measured, not guessed.",
            "",
            *lines,
            "",
            "`peakward COMMAND --help` lists a command's options; `peakward --version` tells",
            "its version.",
        )
    )


def _dispatch(name: str, arguments: Sequence[str]) -> int:
    if name in ("", "-h", "--help", "help"):
        print(overview())
        return 0
    if name == "--version":
        from peakward import __version__

        print(__version__)
        return 0
    look_up("a command", name, COMMANDS)
    from peakward.cli.parse import parse

    command = importlib.import_module(f"peakward.cli.{name}")
    options = parse(command.Options, arguments, prog=f"peakward {name}")
    if options is None:
        return 0
    code: int = command.main(options, printable(shlex.join(("peakward", name, *arguments))))
    return code


def _ended(arguments: Sequence[str]) -> int:
    """Carry the line out; refusals and a Ctrl-C become a line and an exit code."""
    name = arguments[0] if arguments else ""
    try:
        return _dispatch(name, arguments[1:])
    except PeakwardError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _complain(_interruption(name, arguments), INTERRUPTED)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        from peakward.api.session import NO_TORCH

        return _complain(NO_TORCH)


def _complain(line: str, code: int = REFUSED) -> int:
    print(f"peakward: {line}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """The interpreter flushes stdout once more on its way out: there it must find somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interruption(name: str, arguments: Sequence[str]) -> str:
    if name not in COMMANDS or not COMMANDS[name].measures:
        return "interrupted"
    # A report of what was measured may be in its files already.
    files = any(word.startswith(("--html", "--markdown")) for word in arguments)
    over_them = ", with --force," if files and "--force" not in arguments else ""
    return f"interrupted; what was measured is stored, run the same command{over_them} to resume"
