"""Why a rate may lie above the roof: each case of it is said."""

from collections.abc import Sequence

from peakward.records.calibration import Calibration
from peakward.studies.flash.grid import Cell


def causes(cells: Sequence[Cell], of: Calibration | None) -> tuple[str, ...]:
    """Nothing where no rate does."""
    over = [cell for cell in cells if (cell.roof_share or 0.0) > 1]
    if not over or of is None:
        return ()
    several = len(over) > 1
    said = [f"{len(over)} {'rates are' if several else 'rate is'} above the roof."]
    said += [f"When the roof was measured, {doubt}: it may be too low." for doubt in of.doubts]
    if len(said) == 1:
        said.append("The square product of the calibration was not this device's best.")
    return (" ".join(said),)
