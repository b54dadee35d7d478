"""What the tables of a trace's report share. A profile's nanoseconds are printed as seconds."""

NS = 1e-9
Row = tuple[str | int | float | None, ...]


def share(part_ns: int, whole_ns: int) -> float | None:
    """The part of the whole, or None of nothing."""
    return part_ns / whole_ns if whole_ns else None
