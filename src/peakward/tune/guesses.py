"""Guesses tokens on the best composition of a decode run, where a real model's text tells what that gains."""

from typing import TYPE_CHECKING, NamedTuple, get_args

import msgspec

from peakward.levers.decode_step import AXIS as DECODE_STEP
from peakward.levers.decode_step import guesses_obstacle
from peakward.levers.in_generation import in_generation
from peakward.records.case import GenerationPrecision, ModelCase, SpeculationCase
from peakward.records.errors import OutOfTimeError
from peakward.records.measurement import Interval, Measurement, Protocol, Speculated
from peakward.records.study import Column, Conclusion, Evidence, Study, Table, Unit
from peakward.report.columns import spread_column, without_empty
from peakward.report.format import format_cell, format_spread
from peakward.report.run.sections import GUESSES_TITLE
from peakward.stats.speculation import accepted_share, speedup, tokens_per_pass
from peakward.stats.summary import typical_s
from peakward.tune.bench import Bench
from peakward.tune.ledger import Undone

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep

DRAFT, N_GUESSED = "ngrams", 4
"""Guesses what followed the last time that the text ended so, in no time and memory of its own. All drafts
that were models lost on SmolLM2-135M on an H200 (`2026-11-29-h200-study-speculative`)."""
N_PROMPTS, N_NEW_TOKENS = 12, 64
PRECISIONS: tuple[GenerationPrecision, ...] = get_args(GenerationPrecision)
"""A generation takes the device's own in the place of any other."""


class Guessed(NamedTuple):
    """The texts with guesses and without, or why there are none."""

    measured: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()


def guessed(
    model: str | None, measured: Measurement, bench: Bench, sweep: "Sweep", protocol: Protocol
) -> Guessed:
    """Texts of the real model as the best composition makes its steps, within what is left of the budget.

    Args:
        measured: the best composition.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    best, step_s = measured.case, typical_s(measured)
    if not isinstance(best, ModelCase) or best.workload.pass_ != "decode" or step_s is None:
        return Guessed()
    if model is None:
        return _left("only a real model can show which are right: give --real-model")
    if (reason := obstacle(best)) is not None:
        return _left(reason)
    cost_s = bench.costs.start_s + 2 * (N_PROMPTS + 1) * N_NEW_TOKENS * step_s.estimate
    what = f"guessing tokens of {model}"
    if not bench.ledger.affords(cost_s, what):
        return Guessed()
    sweep.workers.close()
    left = in_generation(best.configuration, best.device).left
    note = (
        "The texts with guesses were made without these settings of the best, for which peakward generate "
        f"has no option: {', '.join(left)}."
    )
    try:
        found = sweep.measure(texts(model, best), protocol)
    except OutOfTimeError:
        bench.ledger.skip(Undone(what, cost_s=cost_s))
        return Guessed()
    if found.interrupted:
        raise KeyboardInterrupt
    return Guessed((found,), (note,) if left and found.status == "ok" else ())


def _left(reason: str) -> Guessed:
    return Guessed(notes=(f"Guesses (speculative decoding) were not tried: {reason}.",))


def obstacle(best: ModelCase) -> str | None:
    """Why no text can be made with guesses as the best has its steps, or None."""
    configuration, n_rows = best.configuration, best.workload.batch_size
    if n_rows > 1:
        return (
            f"they are timed for one text at a time, got a batch of {n_rows}: give --batch-size 1"
        )
    if configuration.kv_cache == "none":
        return "they need a cache of keys and values, got kv-cache none"
    if DECODE_STEP.value(configuration) == "fused":
        return guesses_obstacle(configuration.weights, configuration.kv_cache)
    return None


def texts(model: str, best: ModelCase) -> SpeculationCase:
    """The case of a best that has no obstacle, as near to it as a generation can be."""
    configuration = best.configuration
    return SpeculationCase(
        model=model,
        draft=DRAFT,
        guesses=N_GUESSED,
        n_prompts=N_PROMPTS,
        n_new_tokens=N_NEW_TOKENS,
        precision=configuration.precision if configuration.precision in PRECISIONS else None,
        weights=configuration.weights,
        kv_cache="int8" if configuration.kv_cache == "int8" else "static",
        decode_step="fused" if DECODE_STEP.value(configuration) == "fused" else "separate",
        device=best.device,
    )


def entered(study: Study, found: Guessed) -> Study:
    """The study with these texts."""
    said = tuple(told for each in found.measured if (told := conclusion(each)) is not None)
    return msgspec.structs.replace(
        study,
        measurements=(*study.measurements, *found.measured),
        tables=(*study.tables, *map(table, found.measured)),
        conclusions=(*study.conclusions, *said),
        notes=(*study.notes, *found.notes),
    )


def table(measured: Measurement) -> Table:
    """One row; its times are those of texts."""
    case, found = measured.case, measured.speculated
    assert isinstance(case, SpeculationCase)
    speed = speedup(measured)
    return without_empty(
        Table(
            title=GUESSES_TITLE,
            columns=(
                Column(name="guessed by"),
                Column(name="guesses", unit="count"),
                Column(name="accepted", unit="share"),
                Column(name="tokens a pass", unit="count"),
                spread_column("speed-up"),
                Column(name="equal texts", unit="count"),
                Column(name="status"),
                Column(name="reason"),
            ),
            rows=(
                (
                    case.draft,
                    case.guesses,
                    None if found is None else accepted_share(found),
                    None if found is None else tokens_per_pass(case, found),
                    None if speed is None else format_spread(speed, "ratio"),
                    None if found is None else found.n_equal,
                    measured.status,
                    measured.reason,
                ),
            ),
            note=_note(case),
        )
    )


def _note(case: SpeculationCase) -> str:
    return (
        f"{case.n_prompts} texts of {case.n_new_tokens} tokens each, one at a time, in turns with the same "
        "without guesses. Accepted is the share that was right of the guessed tokens whose turn came; those "
        "behind a refused one are not judged. The interval is over the texts. In 16 bits two tokens of "
        "nearly equal logits may change places."
    )


def conclusion(measured: Measurement) -> Conclusion | None:
    """Whether guessing pays; None where the texts were not made."""
    case, found, speed = measured.case, measured.speculated, speedup(measured)
    if not isinstance(case, SpeculationCase) or found is None or speed is None:
        return None
    verdict = "no difference is shown"
    if speed.low > 1:
        verdict = "guessing pays"
    elif speed.high < 1:
        verdict = "guessing loses"
    share = accepted_share(found)
    judged = "No guess was judged"
    if share is not None:
        judged = f"{case.model} accepts {format_cell(share, 'share')} of the judged guesses"
    return Conclusion(
        text=f"With {case.guesses} tokens guessed at a time by {case.draft} (speculative decoding) texts "
        f"are made at {format_spread(speed, 'ratio')} the speed of the same without guesses: {verdict}. "
        f"{judged}, and {found.n_equal} of {case.n_prompts} texts are token for token the same.",
        evidence=tuple(
            Evidence(quantity=name, value=value, unit=unit, from_ids=(measured.id,))
            for name, value, unit in _numbers(found, speed)
            if value is not None
        ),
    )


def _numbers(found: Speculated, speed: Interval) -> tuple[tuple[str, float | None, Unit], ...]:
    """Those of the conclusion."""
    return (
        ("speed-up", speed.estimate, "ratio"),
        ("speed-up, low end", speed.low, "ratio"),
        ("speed-up, high end", speed.high, "ratio"),
        ("accepted", accepted_share(found), "share"),
        ("equal texts", float(found.n_equal), "count"),
    )
