"""How well step times are predicted: the stored measurements of a GPU, replayed.

    python benchmarks/prediction_accuracy.py --device h200-141 --out results/DATE-h200-accuracy.json

Needs no GPU: it reads results/, predicts each measured case from the stored calibration and from
the datasheet alone, and writes the JSON with the Markdown beside it.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from accuracy.judge import judge
from accuracy.page import document
from accuracy.replay import sites
from peakward.report import markdown
from stored_results import FOLDER


def main() -> None:
    """Judge, write both files, print the report's head."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--device", required=True, help="whose measurements: a catalogued key")
    parser.add_argument("--results", type=Path, default=FOLDER, help="where measurements lie")
    options = parser.parse_args()
    known = sites(options.results)
    if options.device not in known:
        parser.error(f"expected a calibrated device ({', '.join(known)}), got {options.device}")
    found = judge(options.results, known[options.device])
    page = document(found)
    with options.out.open("xb") as file:  # results are never overwritten
        file.write(msgspec.json.encode(found) + b"\n")
    options.out.with_suffix(".md").write_text(markdown.render(page), encoding="utf-8")
    print(page.headline, file=sys.stderr)


if __name__ == "__main__":
    main()
