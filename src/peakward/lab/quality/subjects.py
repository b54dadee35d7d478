"""The subjects of cases that ask for the loss of a language model on real text, each with its module."""

from collections.abc import Callable

from peakward.lab.quality import caches, levers, positions, weights
from peakward.lab.quality.score import Work
from peakward.records.case import QualityCase, QualitySubject

BUILDERS: dict[QualitySubject, Callable[[QualityCase], Work]] = {
    "cache": caches.build,
    "positions": positions.build,
    "weights": weights.build,
    "levers": levers.build,
}


def build(case: QualityCase) -> Work:
    """The work of the case, ready to run on its device.

    Raises:
        PeakwardError: the subject has no such way, it takes other sizes, or the model or the text is missing.
    """
    return BUILDERS[case.subject](case)
