"""What a study says, before it is put on record, and how its sentences are made."""

import msgspec

from peakward.records.calibration import Calibration
from peakward.records.device import Device
from peakward.records.measurement import Measurement
from peakward.records.memory import CaseMemory
from peakward.records.model_shape import ModelShape
from peakward.records.plan import ScalingFit
from peakward.records.profile import CaseProfile
from peakward.records.study import Conclusion, Evidence, Plot, Table, Unit
from peakward.report.format import format_cell

Source = Measurement | CaseProfile | CaseMemory | Calibration | Device | ModelShape | ScalingFit
"""What a number may be computed from."""


class Parts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tables, plots and conclusions, all computed from measurements."""

    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    conclusions: tuple[Conclusion, ...] = ()
    notes: tuple[str, ...] = ()


def evidence(quantity: str, value: float, unit: Unit, *sources: Source | None) -> Evidence:
    """A number, and the ids and names of what it was computed from."""
    ids = tuple(dict.fromkeys(_id(each) for each in sources if each is not None))
    return Evidence(quantity=quantity, value=value, unit=unit, from_ids=ids)


def _id(source: Source) -> str:
    match source:
        case Device():
            return source.key
        case ModelShape() | ScalingFit():
            return source.name
        case _:
            return source.id


def say(template: str, **fields: str | Evidence) -> Conclusion:
    """The sentence with its fields filled in: evidence as its number in its unit, names as they are."""
    texts = {
        name: field if isinstance(field, str) else format_cell(field.value, field.unit)
        for name, field in fields.items()
    }
    proofs = tuple(field for field in fields.values() if isinstance(field, Evidence))
    return Conclusion(text=template.format(**texts), evidence=proofs)
