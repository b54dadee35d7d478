"""Writes the tables of README and docs/ anew, from results/ and from the code.

    python benchmarks/docs_tables.py            (make tables)
    python benchmarks/docs_tables.py --check    exits with 1 where a page is not current

A page says where a table goes, and which; what lies between the two lines is made:

    <!-- made: speed rms_norm -->
    <!-- end -->

Needs no GPU.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from tables import against, calls, run, speed, trials

ROOT = Path(__file__).parents[1]
MADE = re.compile(r"<!-- made: (?P<what>[^>]*) -->\n.*?<!-- end -->", re.DOTALL)
TABLES: dict[str, Callable[..., str]] = {
    "against-transformers": against.transformers,
    "attention-lengths": speed.attention_lengths,
    "calls": calls.calls,
    "decode": against.decode,
    "findings": run.findings,
    "host": trials.host_costs,
    "lever": trials.lever,
    "levers": trials.levers,
    "linear-loss": trials.linear_loss,
    "operators": speed.operators,
    "speed": speed.contests,
    "stack": run.stack,
    "variants": speed.variants,
    "verdicts": speed.verdicts,
}
"""What a page can ask for, by name; further words are its arguments."""


def pages() -> list[Path]:
    """Those that ask for something."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [each for each in every if MADE.search(each.read_text(encoding="utf-8"))]


def current(page: Path) -> str:
    """The page with everything made anew."""
    return MADE.sub(lambda found: _made(found["what"]), page.read_text(encoding="utf-8"))


def _made(what: str) -> str:
    name, *arguments = shlex.split(what)
    if name not in TABLES:
        raise KeyError(f"expected one of {', '.join(TABLES)}, got {name}")
    return f"<!-- made: {what} -->\n{TABLES[name](*arguments).strip()}\n<!-- end -->"


def main() -> None:
    """Rewrite, or name, the pages that are not current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is stale")
    options = parser.parse_args()
    stale = [each for each in pages() if current(each) != each.read_text(encoding="utf-8")]
    for each in stale:
        print(each.relative_to(ROOT))
        if not options.check:
            each.write_text(current(each), encoding="utf-8")
    sys.exit(1 if stale and options.check else 0)


if __name__ == "__main__":
    main()
