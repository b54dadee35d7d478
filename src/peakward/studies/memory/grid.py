"""The grid of `memory`, each case with its measured, recorded and predicted memory."""

from collections.abc import Sequence

import msgspec

from peakward.records.case import ModelCase, Pass, Precision
from peakward.records.measurement import Measurement, Protocol
from peakward.records.memory import CaseMemory, PhasePeak
from peakward.studies.cases import model_case, place
from peakward.studies.peaks import predicted_peak, prediction
from peakward.studies.readings import Planned, Readings, peak_bytes, ratio
from peakward.studies.setting import Setting

PASSES: tuple[Pass, ...] = ("forward", "train_step")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16-mixed")
BETWEEN = {"small": 128, "corners": 512}
"""An exponent needs a third length."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One case."""

    case: ModelCase
    measurement: Measurement | None
    memory: CaseMemory | None

    @property
    def peak(self) -> PhasePeak | None:
        """Of the recorded step."""
        phases = () if self.memory is None else self.memory.phases
        return max(phases, key=lambda each: each.allocated_bytes, default=None)

    @property
    def activations_bytes(self) -> int | None:
        """All that one step keeps for its backward pass; None where nothing does."""
        if self.memory is None:
            return None
        return sum(each.n_bytes for each in self.memory.modules) or None

    @property
    def actual_bytes(self) -> int | None:
        """The peak to hold a prediction against: on a GPU as measured. On a CPU, where what is measured
        is the process, as recorded in the phase of the predicted peak: a GPU's workspaces are there in
        every step but not before the first, and may put its peak into another phase."""
        if self.case.device == "cuda":
            return peak_bytes(self.measurement)
        told = prediction(self.case)
        if self.memory is None or told is None:
            return None
        in_phase = {each.phase: each.allocated_bytes for each in self.memory.phases}
        return self.memory.peak_bytes if told.phase == "build" else in_phase.get(told.phase)

    @property
    def predicted_bytes(self) -> int | None:
        """The predicted peak; see `predicted_peak`."""
        return predicted_peak(self.case)

    @property
    def predicted_over_actual(self) -> float | None:
        """1 where the prediction is right."""
        return ratio(self.predicted_bytes, self.actual_bytes)


def kept_name(memory: CaseMemory) -> str:
    """What its activations are to be called: a record from before casts of weights were told apart has
    them among the activations."""
    casts = memory.case.configuration.precision.endswith("-mixed")
    mixed_up = casts and "weight_casts" not in memory.purposes
    return "activations and casts of weights" if mixed_up else "activations"


def residual_bytes(case: ModelCase) -> int:
    """One activation of the residual stream, batch × seq_len × d_model: in the parameters' type, as
    autocast leaves sums alone."""
    width = 2 if case.configuration.precision == "bf16" else 4
    work = case.workload
    return work.batch_size * work.seq_len * case.model.d_model * width


def precisions(setting: Setting) -> tuple[Precision, ...]:
    """Those asked for, or of the study's own those that this device has."""
    if setting.scope.precisions:
        return setting.scope.precisions
    shape, seq_len = setting.grid.models[0], setting.grid.seq_lens[0]
    return tuple(
        each
        for each in PRECISIONS
        if setting.obstacle(
            model_case(shape, 1, seq_len, "train_step", setting.device, precision=each)
        )
        is None
    )


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Size × precision × pass × sequence, with naive attention."""
    grid = setting.grid
    return tuple(
        (
            model_case(shape, grid.batch_size, seq_len, pass_, setting.device, precision=precision),
            _protocol(setting),
        )
        for shape in grid.models
        for precision in precisions(setting)
        for pass_ in PASSES
        for seq_len in _seq_lens(setting)
    )


def _protocol(setting: Setting) -> Protocol:
    """Two steps: the first makes gradients and moments, the second runs beside them."""
    return setting.protocol(warmup_steps=1, min_steps=1, max_steps=1, phases=False)


def _seq_lens(setting: Setting) -> tuple[int, ...]:
    own = setting.grid.seq_lens
    between = BETWEEN.get(setting.scope.name)
    if between is None or setting.scope.seq_lens:
        return own
    return tuple(sorted({*own, between}))


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid as far as it was run."""
    return tuple(
        Cell(
            case=case,
            measurement=readings.find((case, protocol)),
            memory=readings.memory_of(case),
        )
        for case, protocol in plan(setting)
        if isinstance(case, ModelCase)
    )


def longest(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Of each size and precision the train step of the longest sequence that was recorded."""
    found: dict[tuple[str, Precision], Cell] = {}
    for cell in sorted(cells, key=lambda each: each.case.workload.seq_len):
        if cell.case.workload.pass_ == "train_step" and cell.memory is not None:
            found[cell.case.model.name, cell.case.configuration.precision] = cell
    return tuple(cell for cell in cells if cell in found.values())


def named(cell: Cell) -> str:
    """For a sentence: "tiny 2 × 128 train_step in fp32"."""
    return f"{place(cell.case)} in {cell.case.configuration.precision}"
