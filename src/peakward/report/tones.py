"""Words that a view may colour. The words alone carry the meaning."""

from typing import Literal

from peakward.records.study import Cell

Tone = Literal["good", "bad", "doubtful", "muted"]

TONES: dict[str, Tone] = {
    "gain confirmed": "good",
    "makes it run": "good",
    "ok": "good",
    "holds": "good",
    "stable": "good",
    "rejected": "bad",
    "violated": "bad",
    "oom": "bad",
    "timeout": "bad",
    "crashed": "bad",
    "invalid": "bad",
    "inconclusive": "doubtful",
    "unstable": "doubtful",
    "throttled": "doubtful",
    "not computed": "muted",
    "not measured": "muted",
    "refused": "muted",
}


def tone(cell: Cell) -> Tone | None:
    """The tone of a cell that is such a word."""
    return TONES.get(cell) if isinstance(cell, str) else None
