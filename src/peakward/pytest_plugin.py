"""The fixture `peakward_gate`: a test fails where a step got slower than its stored baseline.

    def test_speed(peakward_gate):
        peakward_gate(step, name="train step", baseline="speed.json")

`pytest --peakward-update` stores the baselines in place of judging by them. pytest loads this module
in every session of an environment that has Peakward: it imports nothing of it before a test asks.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--peakward-update`."""
    parser.getgroup("peakward").addoption(
        "--peakward-update",
        action="store_true",
        help="measure the steps of peakward_gate and store them as their baselines",
    )


class Gate:
    """The function that the fixture `peakward_gate` gives."""

    def __init__(self, root: Path, *, update: bool) -> None:
        self._root, self._update = root, update

    def __call__(
        self,
        step: Callable[[], object],
        *,
        name: str,
        baseline: str | Path,
        threshold: float | None = None,
        across: bool = False,
        **settings: Any,
    ) -> None:
        """Measure the step and fail the test where it got slower.

        A regression is one where the whole 95% interval of the ratio of medians lies beyond the
        threshold, and does so again when the step is measured a second time. What cannot be told
        passes with a warning.

        Args:
            step: called without arguments, again and again: one whole step.
            name: of the step in the baseline.
            baseline: a JSON file; a relative path is from pytest's root.
            threshold: changes within this share do not matter; by default 0.03.
            across: judge although the baseline is of another environment.
            settings: of `pw.measure_step`: model, optimizer, device, protocol, tokens_per_step.

        Raises:
            PeakwardError: no torch, no such baseline, one of another environment, a threshold that is
                no share, or a step that does not run.
        """
        from peakward.api import gate
        from peakward.records import check

        least = gate.THRESHOLD
        if threshold is not None:
            least = check.share(threshold, "threshold")
        check.flag(across, "across")
        path = self._root / check.path(baseline, "baseline")
        if not self._update:
            gate.read(path)  # What is not there is said before anything is measured.
        now = gate.measured(step, name=name, **settings)
        if self._update:
            gate.keep(path, now)
            return
        found = gate.judged(path, now, threshold=least, across=across)
        if found.verdict == "slower":
            again = gate.measured(step, name=name, **settings)
            found = gate.judged(path, again, threshold=least, across=across)
        if found.verdict == "slower":
            pytest.fail(gate.said(found, path), pytrace=False)
        if found.verdict not in ("same", "faster"):
            warnings.warn(pytest.PytestWarning(gate.said(found, path)), stacklevel=2)


@pytest.fixture
def peakward_gate(request: pytest.FixtureRequest) -> Gate:
    """`peakward_gate(step, name=…, baseline=…)` fails the test where the step got slower."""
    update = bool(request.config.getoption("--peakward-update"))
    return Gate(request.config.rootpath, update=update)
