"""Prints the findings about a watched loop while it runs: a few lines among the loop's own."""

import msgspec

from peakward.records.finding import Diagnosis
from peakward.report.columns import without_empty
from peakward.report.document import Document, Items, TableBlock
from peakward.report.findings import ranking
from peakward.report.format import format_duration


def document(found: Diagnosis) -> Document:
    """The ranking, and the remedy of each finding. Rules that could not judge are left to the full report."""
    n = len(found.findings)
    step = "" if found.whole_s is None else f", of a step of {format_duration(found.whole_s)}"
    table = msgspec.structs.replace(ranking(found), note=None)
    return Document(
        title="peakward watch",
        headline=f"{n} finding{'' if n == 1 else 's'}{step}",
        blocks=(
            TableBlock(table=without_empty(table)),
            Items(texts=tuple(f"{each.code}: {each.advice}." for each in found.findings)),
        ),
    )


class Announcer:
    """Prints findings on stderr only when one is new, because repeating the same table every hundred steps
    says nothing."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, found: Diagnosis) -> None:
        codes = {each.code for each in found.findings}
        if codes <= self._said:
            return
        self._said |= codes
        # Imported here, so that `import peakward` stays quick.
        from rich.console import Console

        from peakward.report import terminal

        terminal.render(document(found), Console(stderr=True))
