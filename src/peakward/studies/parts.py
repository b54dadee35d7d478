"""What a study says, before it is put on record, and how its sentences are made."""

import msgspec

from peakward.records.measurement import Measurement
from peakward.records.profile import CaseProfile
from peakward.records.study import Conclusion, Evidence, Plot, Table, Unit
from peakward.report.format import format_cell


class Parts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tables, plots and conclusions, all computed from measurements."""

    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    conclusions: tuple[Conclusion, ...] = ()
    notes: tuple[str, ...] = ()


def evidence(
    quantity: str, value: float, unit: Unit, *sources: Measurement | CaseProfile | None
) -> Evidence:
    """A number, and the ids of what it was computed from."""
    ids = tuple(dict.fromkeys(each.id for each in sources if each is not None))
    return Evidence(quantity=quantity, value=value, unit=unit, from_ids=ids)


def say(template: str, **fields: str | Evidence) -> Conclusion:
    """The sentence with its fields filled in: evidence as its number in its unit, names as they are."""
    texts = {
        name: field if isinstance(field, str) else format_cell(field.value, field.unit)
        for name, field in fields.items()
    }
    proofs = tuple(field for field in fields.values() if isinstance(field, Evidence))
    return Conclusion(text=template.format(**texts), evidence=proofs)
