"""The reference pages of the site, made from the code when the site is built (a hook of mkdocs).

What a command, a function, a lever, a rule, a study or a device is, its own words in the code say; these
pages put them in order and add nothing, so that they cannot be out of date.
"""

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import peakward as pw
from peakward.cli.main import COMMANDS, main
from peakward.diagnose.examine import PARTS, RULES
from peakward.hardware.devices import devices
from peakward.levers.catalogue import LEVERS
from peakward.studies.registry import STUDIES

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

sys.path.insert(0, str(Path(__file__).parent))
from architecture import picture

ROW_BREAKS = re.compile(r"\s+")
MODULES = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")


def commands() -> str:
    """Each command's `--help`, as a terminal of 100 columns shows it."""
    parts = ["# Commands", "", "```", _printed([]), "```"]
    for name, command in COMMANDS.items():
        parts += ["", f"## peakward {name}", "", command.summary, ""]
        parts += ["```", _printed([name, "--help"]), "```"]
    return "\n".join(parts)


def _printed(arguments: list[str]) -> str:
    into = io.StringIO()
    with contextlib.redirect_stdout(into):
        main(arguments or ["--help"])
    return into.getvalue().rstrip()


def python() -> str:
    """Each public name with its signature and docstring."""
    parts = ["# Python", "", inspect.getdoc(pw) or ""]
    for name in sorted(pw.__all__, key=str.lower):
        found = getattr(pw, name)
        if name == "__version__":
            continue
        parts += ["", f"## pw.{name}", ""]
        if inspect.isfunction(found):
            parts += ["```python", f"pw.{name}{_signature(found)}", "```", ""]
        parts += ["```text", inspect.getdoc(found) or "", "```"]
    return "\n".join(parts)


def _signature(function: Callable[..., object]) -> str:
    """One parameter a line, types without their modules."""
    signature = inspect.signature(function)
    lines = [f"    {MODULES.sub('', str(each))}," for each in signature.parameters.values()]
    stars = [
        i for i, each in enumerate(signature.parameters.values()) if each.kind is each.KEYWORD_ONLY
    ]
    if stars and not any(
        each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()
    ):
        lines.insert(stars[0], "    *,")
    returned = MODULES.sub("", inspect.formatannotation(signature.return_annotation))
    return "(\n" + "\n".join(lines) + f"\n) -> {returned}"


def levers() -> str:
    """Each lever with what it sets and what it may do to the numbers."""
    rows = (
        (
            f"`{lever.name}`",
            lever.summary,
            ", ".join(f"`--{field.replace('_', '-')} {value}`" for field, value in lever.sets),
            lever.numerics,
        )
        for lever in LEVERS
    )
    about = (
        "A lever changes one setting of a case. `peakward run --lever NAME,…` tries those named, `--baseline "
        "NAME,…` starts from them. *exact* levers give the same bits, *reordered* ones an error within twice "
        "the baseline's own against fp64, *approximate* ones an error within a bound that the report prints."
    )
    return _page("Levers", about, ("lever", "what it does", "sets", "numerics"), rows)


def rules() -> str:
    """Each rule's code, title and parts."""
    about = """\
`peakward run`, `peakward trace` and `pw.watch` may find what follows. A code is never given to another rule.
A rule reads stored numbers alone; where it lacks one, the report says so and the rule does not judge.

A finding names the time that it is about, the evidence and where this is stored, the levers that may help and
what they are predicted to give, and the most that they can give: Amdahl's bound, 1 / (1 - share). Findings
are ranked by time. Time that two findings are both about counts for the one ranked first.

Families: HOST (launching, synchronisation, data), MEM (capacity), BW (bandwidth), PREC (types and rates of
matrix products), ATTN (attention), COMM (communication), GEN (generation), NUM (numerics), DEV (the device's
own state), LOOP (what a live loop does around its steps; `pw.watch` alone sees it), TIME (what no other rule
explains).
"""
    parts = ["# Findings", "", about]
    for rule in RULES:
        parts += [f"## {rule.code}: {rule.title}", ""]
        parts += [f"- **{part}** {rule.told[part]}" for part in PARTS]
        parts.append("")
    return "\n".join(parts)


def studies() -> str:
    """Each study with the question that it answers."""
    rows = ((f"`{each.name}`", each.question, each.measures) for each in STUDIES.values())
    about = (
        "`peakward study NAME` carries one out and reports it with tables, plots and conclusions, each "
        "computed from the numbers. `--dry-run` lists its cases first; an interrupted study resumes."
    )
    return _page("Studies", about, ("study", "question", "measures"), rows)


def hardware() -> str:
    """Each device with its peaks and bandwidth."""
    rows = (
        (
            f"`{each.key}`",
            each.name,
            f"{each.bytes_per_s.value / 1e12:.3g}",
            ", ".join(
                f"{kind} {peak.value / 1e12:.4g}" for kind, peak in each.peak_flops_per_s.items()
            ),
        )
        for each in devices()
    )
    about = (
        "The accelerators that `peakward plan`, `peakward trace` and the rules know, from their makers' "
        "documents. `peakward devices --with-sources` names the document of every figure. Peaks are dense."
    )
    head = ("key", "device", "bandwidth, TB/s", "peaks, TFLOP/s")
    return _page("Devices", about, head, rows)


def _page(title: str, about: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"# {title}", "", about, "", _row(head), _row("-" for _ in head), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(ROW_BREAKS.sub(" ", cell.replace("|", "\\|")) for cell in cells) + " |"


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/python.md": python,
    "reference/levers.md": levers,
    "reference/findings.md": rules,
    "reference/studies.md": studies,
    "reference/devices.md": hardware,
    "images/architecture.svg": picture,
}


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Called by mkdocs once it has found the pages that people wrote."""
    from mkdocs.structure.files import File

    for path, made in PAGES.items():
        files.append(File.generated(config, path, content=made()))
    return files
