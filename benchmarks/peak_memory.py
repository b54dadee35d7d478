"""How well peak memory is predicted: the stored measurements of every GPU, replayed.

    python benchmarks/peak_memory.py --out results/DATE-all-peak-memory.json

Needs no GPU: it reads results/, predicts each measured case from its shapes alone, and writes the
JSON with the Markdown beside it.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from peaks.judge import judge
from peaks.page import document
from peakward.report import markdown
from stored_results import FOLDER


def main() -> None:
    """Judge, write both files, print the report's head."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--results", type=Path, default=FOLDER, help="where measurements lie")
    options = parser.parse_args()
    found = judge(options.results)
    page = document(found)
    with options.out.open("xb") as file:  # results are never overwritten
        file.write(msgspec.json.encode(found) + b"\n")
    options.out.with_suffix(".md").write_text(markdown.render(page), encoding="utf-8")
    print(page.headline, file=sys.stderr)


if __name__ == "__main__":
    main()
