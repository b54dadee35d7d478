"""Holds levers that keep weights or keys and values in fewer bits to the loss of a real model on real text.

A numerics class says that a step errs no more than its own rounding may make it err. How much worse the model
then reads, no such bound tells: it is measured, where the user names real weights.
"""

from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from peakward.levers.weights import SIZES, TEXT
from peakward.prediction.parameters import n_parameters
from peakward.records.case import LeverCase, ModelCase, QualityCase
from peakward.records.errors import OutOfTimeError
from peakward.records.lever import Claim, NumericsVerdict, QualityVerdict
from peakward.records.measurement import Measurement
from peakward.report.format import format_cell
from peakward.stats.summary import paired_difference
from peakward.tune.costs import SCREEN

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep

MOST_LOST = 0.05
"""Nats a token that a lever may lose, the whole interval: 5% of perplexity. Of this text SmolLM2-135M loses
0.0024 by int8 weights and 0.0071 by an fp8 cache; by int4 in groups of 64, which is no lever, 0.4 (CPU)."""
RANDOM = "random weights: their loss on a text would say nothing; name real ones with --real-model"


class Reading:
    """Reads the text with a real model as a case keeps its weights and its cache, each way once: the store
    has what was read before."""

    def __init__(self, sweep: "Sweep", model: str | None) -> None:
        """
        Args:
            model: as `peakward generate` takes it; None where the weights are random.
        """
        self._sweep, self._model = sweep, model

    def judged(self, claim: Claim, numerics: NumericsVerdict) -> NumericsVerdict:
        """The verdict on a claim's numbers with that on its quality, which violates it where more is lost
        than may be. What could not be read with the real model that was named is not computed, so that no
        such lever is kept. One of a claim that keeps nothing in fewer bits, or is violated already, stays."""
        ways = _way(claim.base), _way(claim.candidate)
        if numerics.verdict != "holds" or ways[0] == ways[1]:
            return numerics
        quality = self._quality(claim, *ways)
        found = msgspec.structs.replace(numerics, quality=quality)
        if quality.verdict == "holds" or self._model is None:
            return found
        return msgspec.structs.replace(found, verdict=quality.verdict, reason=quality.reason)

    def _quality(self, claim: Claim, base: str | None, candidate: str | None) -> QualityVerdict:
        if self._model is None or base is None or candidate is None:
            return QualityVerdict(verdict="not computed", bound=MOST_LOST, reason=RANDOM)
        unknown = QualityVerdict(
            verdict="not computed", bound=MOST_LOST, model=self._model, text=TEXT.name
        )
        assert isinstance(claim.base, ModelCase)
        try:
            read = tuple(
                self._sweep.measure(self._case(way, claim.base), SCREEN)
                for way in (base, candidate)
            )
        except OutOfTimeError as error:
            return msgspec.structs.replace(unknown, reason=str(error))
        losses = tuple(map(_losses, read))
        for way, each in zip((base, candidate), read, strict=True):
            if each.quality is None:
                said = f"{self._model} with {way}: {each.reason or each.status}"
                return msgspec.structs.replace(unknown, reason=said)
        if (n := read[0].n_parameters) != (planned := n_parameters(claim.base.model)):
            said = f"{self._model} has {n:,} parameters and {claim.base.name} {planned:,}: another model"
            return msgspec.structs.replace(unknown, reason=said)
        lost = paired_difference(losses[1], losses[0])
        assert lost is not None
        found = msgspec.structs.replace(unknown, loss=fmean(losses[0]), more_loss=lost)
        if lost.high <= MOST_LOST:
            return msgspec.structs.replace(found, verdict="holds")
        low, estimate, high = (
            format_cell(each, "count") for each in (lost.low, lost.estimate, lost.high)
        )
        return msgspec.structs.replace(
            found,
            verdict="violated",
            reason=f"{estimate} nats a token more loss on {TEXT.name} ({low} to {high}), at most "
            f"{MOST_LOST:g} is allowed",
        )

    def _case(self, way: str, base: ModelCase) -> QualityCase:
        return QualityCase(
            subject="levers",
            way=way,
            sizes=SIZES,
            text=TEXT,
            model=self._model,
            device=base.device,
        )


def _way(case: LeverCase) -> str | None:
    """A way of `lab.quality.levers`; None of another case than a decoder's. A step that keeps nothing reads
    as one that keeps all."""
    if not isinstance(case, ModelCase):
        return None
    kept = case.configuration.kv_cache
    return f"{case.configuration.weights}, {'static' if kept == 'none' else kept}"


def _losses(read: Measurement) -> tuple[float, ...]:
    return () if read.quality is None else read.quality.losses[0].losses
