"""The grid of `kernels`, each case with its time and its profile."""

from collections.abc import Sequence

import msgspec

from peakward.records.case import ModelCase, Pass
from peakward.records.measurement import Measurement
from peakward.records.profile import CaseProfile
from peakward.studies.cases import model_case, with_work
from peakward.studies.readings import Planned, Readings, median_s, ratio
from peakward.studies.setting import Setting

INFERENCE: Pass = "forward"
TRAINING: Pass = "train_step"
PASSES: tuple[Pass, ...] = (INFERENCE, TRAINING)
BETWEEN_CORNERS = 512
"""A share's curve needs a third length."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One case, timed and profiled."""

    case: ModelCase
    measurement: Measurement | None
    profile: CaseProfile | None

    @property
    def over_plain(self) -> float | None:
        """Step time under the profiler over the plain timer's: what profiling costs."""
        profiled_s = None if self.profile is None else self.profile.profiled_step_s
        return ratio(profiled_s, median_s(self.measurement))


class Both(msgspec.Struct, frozen=True, kw_only=True):
    """A model and length in inference and in training, both profiled."""

    inference: CaseProfile
    training: CaseProfile
    case: ModelCase
    """The training step."""


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Size × sequence × pass, in the baseline configuration."""
    grid = setting.grid
    return tuple(
        _planned(model_case(shape, grid.batch_size, seq_len, pass_, setting.device), setting)
        for shape in grid.models
        for seq_len in _seq_lens(setting)
        for pass_ in PASSES
    )


def _seq_lens(setting: Setting) -> tuple[int, ...]:
    own = setting.grid.seq_lens
    if setting.scope.name != "corners" or setting.scope.seq_lens:
        return own
    return tuple(sorted({*own, BETWEEN_CORNERS}))


def _planned(case: ModelCase, setting: Setting) -> Planned:
    return case, setting.protocol(phases=False)


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid as far as it was run."""
    return tuple(
        Cell(
            case=case,
            measurement=readings.find((case, protocol)),
            profile=readings.profile(case),
        )
        for case, protocol in plan(setting)
        if isinstance(case, ModelCase)
    )


def longest(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Of each size and pass the longest sequence that was profiled."""
    found: dict[tuple[str, Pass], Cell] = {}
    for cell in sorted(cells, key=lambda each: each.case.workload.seq_len):
        if cell.profile is not None:
            found[cell.case.model.name, cell.case.workload.pass_] = cell
    return tuple(cell for cell in cells if cell in found.values())


def pairs(cells: Sequence[Cell]) -> tuple[Both, ...]:
    """The sizes and lengths of which both passes were profiled."""
    profiles = {cell.case: cell.profile for cell in cells if cell.profile is not None}
    found = []
    for case, profile in profiles.items():
        training = with_work(case, pass_=TRAINING)
        if case.workload.pass_ == INFERENCE and training in profiles:
            found.append(Both(inference=profile, training=profiles[training], case=training))
    return tuple(found)
