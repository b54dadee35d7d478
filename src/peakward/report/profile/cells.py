"""Shared by the tables of a trace's report, which print a profile's nanoseconds as seconds."""

NS = 1e-9
Row = tuple[str | int | float | None, ...]


def share(part_ns: int, whole_ns: int) -> float | None:
    """The part's share of the whole; None where the whole is 0."""
    return part_ns / whole_ns if whole_ns else None
