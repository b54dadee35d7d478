"""What trains under a memory limit: in each precision, and with memory-saving levers added."""

from typing import Any

import msgspec

from peakward.records.case import ModelCase, Precision
from peakward.records.measurement import Measurement
from peakward.studies.cases import model_case, with_levers
from peakward.studies.fits import Fit, asked_limits, fit, probe, within_device
from peakward.studies.readings import Planned, Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting
from peakward.studies.throughput.speed import BASE, planned, precisions

ADDED: dict[str, dict[str, Any]] = {
    "checkpointing": {"checkpointing": "every-block"},
    "flash attention": {"attention": "sdpa"},
    "both": {"checkpointing": "every-block", "attention": "sdpa"},
}
"""`sdpa` is torch's scaled_dot_product_attention: flash attention where the precision allows it."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way to train a size: a precision, and perhaps something that saves memory."""

    case: ModelCase
    precision: Precision
    added: str | None

    @property
    def name(self) -> str:
        """For a table: "bf16-mixed", "bf16-mixed + checkpointing"."""
        if self.added == "both":
            return f"{self.precision} + checkpointing + flash attention"
        return self.precision if self.added is None else f"{self.precision} + {self.added}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A way to train a size, what it took without a limit, and whether it fits each limit."""

    way: Way
    free: Measurement | None
    plain: Measurement | None
    """Without a limit, in the same precision with nothing added."""
    fits: tuple[Fit | None, ...]
    """One for each limit."""


def ways(setting: Setting) -> tuple[Way, ...]:
    """Each precision alone, by size; then the lowest one (in `full` each lower one) with additions."""
    found = []
    for shape in setting.grid.models:
        longest = max(setting.grid.seq_lens)
        bare = model_case(shape, setting.grid.batch_size, longest, "train_step", setting.device)
        for precision in precisions(setting):
            case = with_levers(bare, precision=precision)
            found.append(Way(case=case, precision=precision, added=None))
            if precision in _helped(setting):
                found += [
                    Way(case=with_levers(case, **levers), precision=precision, added=added)
                    for added, levers in ADDED.items()
                ]
    return tuple(way for way in found if setting.obstacle(way.case) is None)


def limits(setting: Setting) -> tuple[int, ...]:
    """In bytes, ascending."""
    return within_device(asked_limits(setting), setting)


def free_plan(setting: Setting) -> tuple[Planned, ...]:
    """Every way once without a limit: its time, and on CUDA which limits it fits for certain."""
    return tuple(planned(way.case, setting) for way in ways(setting))


def gather(lab: Recorder, setting: Setting) -> None:
    """Under each limit, the ways of which nothing yet says whether they fit."""
    for row in read(lab.readings, setting):
        for limit in limits(setting):
            if _fit(row.way, limit, lab.readings, setting) is None:
                lab.measure(probe(row.way.case, limit, setting))


def read(readings: Readings, setting: Setting) -> tuple[Row, ...]:
    """What is known of each way."""
    return tuple(
        Row(
            way=way,
            free=readings.find(planned(way.case, setting)),
            plain=readings.find(planned(_plain(way.case), setting)),
            fits=tuple(_fit(way, limit, readings, setting) for limit in limits(setting)),
        )
        for way in ways(setting)
    )


def _helped(setting: Setting) -> tuple[Precision, ...]:
    lower = [each for each in precisions(setting) if each not in (BASE, "tf32")]
    return tuple(lower if setting.scope.name == "full" else lower[-1:])


def _plain(case: ModelCase) -> ModelCase:
    return with_levers(case, checkpointing="none", attention="naive")


def _fit(way: Way, limit: int, readings: Readings, setting: Setting) -> Fit | None:
    return fit(
        way.case,
        limit,
        limits_bytes=limits(setting),
        free=planned(way.case, setting),
        readings=readings,
        setting=setting,
    )
