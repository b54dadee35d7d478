"""The result of `peakward trace`: one trace, or several as ranks of one job."""

from typing import ClassVar

import msgspec

from peakward.records.finding import Diagnosis
from peakward.records.profile import Job, Profile
from peakward.records.result import Result


class TraceReport(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The profile and the diagnosis of each trace, and the comparison of several."""

    ROWS: ClassVar[tuple[str, ...]] = ("profiles",)

    profiles: tuple[Profile, ...]
    diagnoses: tuple[Diagnosis, ...]
    """One for each profile. Empty for a part of a trace, because its rest would look idle to the rules."""
    job: Job | None = None
    """None for a single trace."""
