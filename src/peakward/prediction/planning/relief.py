"""Which levers would make a case fit that does not."""

from peakward.prediction.planning.changes import Base, changes
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.plan import Forecast


def relief(case: ModelCase, forecast: Forecast, on: Site) -> tuple[str, ...]:
    """The levers each of which alone makes the case of the forecast fit, the fastest first; none where it
    fits already, or where that is not known."""
    if forecast.fits is not False:
        return ()
    found = changes(Base(case, forecast), on)
    return tuple(each.levers[0] for each in found if each.fits is True)
