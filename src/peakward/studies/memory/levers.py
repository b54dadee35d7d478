"""What levers would free, predicted."""

from collections.abc import Sequence
from typing import Any, Final

from peakward.records.study import Column, Table
from peakward.studies.cases import with_levers
from peakward.studies.memory.grid import Cell
from peakward.studies.memory.tables import COLUMNS, cells_of
from peakward.studies.peaks import predicted_peak
from peakward.studies.readings import ratio

LEVERS: Final[dict[str, dict[str, Any]]] = {
    "sdpa": {"attention": "sdpa"},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16": {"precision": "bf16"},
    "checkpointing every block": {"checkpointing": "every-block"},
    "checkpointing selective": {"checkpointing": "selective"},
    "fused optimizer": {"optimizer": "adamw-fused"},
    "sdpa, bf16, every block, fused": {
        "attention": "sdpa",
        "precision": "bf16",
        "checkpointing": "every-block",
        "optimizer": "adamw-fused",
    },
}


def table(cells: Sequence[Cell]) -> Table:
    """Of each train step the predicted peak under each lever that changes it."""
    rows = []
    for cell in cells:
        base = predicted_peak(cell.case)
        rows.append((*cells_of(cell), "none", base, 1.0 if base else None))
        for name, settings in LEVERS.items():
            changed = with_levers(cell.case, **settings)
            if changed != cell.case:
                peak = predicted_peak(changed)
                rows.append((*cells_of(cell), name, peak, ratio(peak, base)))
    return Table(
        title="What levers would free: predicted, not measured",
        columns=(
            *COLUMNS,
            Column(name="lever", unit="name"),
            Column(name="predicted peak", unit="bytes"),
            Column(name="over none's", unit="ratio"),
        ),
        rows=tuple(rows),
    )
