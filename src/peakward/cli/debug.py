"""Watch a training run, and find what made its first NaN or infinity."""

from pathlib import Path
from typing import Annotated

import msgspec

from peakward.api import debugging
from peakward.api.machine import this_machine
from peakward.cli import options, output, parse
from peakward.cli.vocabulary import CaseOptions, Cases, ViewOptions, Views, option
from peakward.records.errors import PeakwardError
from peakward.report.debugging import document

FOUND = 1
"""The exit code where a value turned non-finite."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Watch a training run, and find what made its first NaN or infinity.

    The state is copied every so many steps. When a loss is not finite, the run goes back to the last good
    copy, replays, and names the first operator, module, channel and inputs, the likely cause, and which
    change lets the run pass. Ends with exit code 1 where a value turned non-finite. A training script of
    your own: `pw.debug(step, model=…, optimizer=…, batches=…)`.
    """

    n_steps: Annotated[str, option("N", "1000")] = "1000"
    """Steps of training."""
    learning_rate: Annotated[str | None, option("X", "0.001")] = None
    """The rate of AdamW."""
    text: Annotated[str | None, option("NAME", "random tokens")] = None
    """Train the decoder on real text, by its bytes: python-topics, kjv, shakespeare, a file or a folder."""
    snapshot_every: Annotated[str, option("N", "100")] = "100"
    """Steps from one copy of the state to the next."""
    check_every: Annotated[str, option("N", "10")] = "10"
    """Steps between two looks at the losses."""
    snapshots: Annotated[str | None, option("FOLDER", "in memory")] = None
    """Where copies of the state are written too."""
    case: Cases = CaseOptions()
    """The case that is trained: one value an option."""
    views: Views = ViewOptions()


def main(given: Options, _command: str) -> int:
    """Run under watch, print."""
    here = this_machine(given.case.device)
    targets = output.targets(given.views)
    found = options.cases(given.case, here.device)
    if len(found) != 1:
        raise PeakwardError(
            f"expected one case to train, got {len(found)}: give one value an option"
        )
    rate = given.learning_rate
    hunted = debugging.debug_case(
        found[0],
        learning_rate=None if rate is None else parse.number(rate, "--learning-rate"),
        text=given.text,
        n_steps=parse.whole(given.n_steps, "--n-steps", low=1, high=debugging.MOST_STEPS),
        snapshot_every=parse.whole(
            given.snapshot_every, "--snapshot-every", low=1, high=debugging.MOST_STEPS
        ),
        check_every=parse.whole(
            given.check_every, "--check-every", low=1, high=debugging.MOST_STEPS
        ),
        folder=None if given.snapshots is None else Path(given.snapshots),
    )
    output.show(hunted, targets, as_json=given.views.json, document=document(hunted))
    return FOUND if hunted.outcome != "finite" else 0
