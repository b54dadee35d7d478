"""The kind of GPU that a trace was taken on, by the trace's own content."""

import re

import numpy as np

from peakward.records.device import Accelerator, Vendor
from peakward.traces.table import HostKind, Table

_OF_VENDOR: tuple[tuple[re.Pattern[str], Vendor], ...] = (
    (re.compile(r"AMD\b|Instinct|Radeon|gfx\d"), "amd"),
    (re.compile(r"NVIDIA\b|Tesla|GeForce|Quadro|GRID|RTX|[ABHLTV]\d+\b|GB?[12]00\b"), "nvidia"),
)
"""Beginnings of devices' names."""
_OF_CALL: tuple[tuple[re.Pattern[str], Vendor], ...] = (
    (re.compile(r"hip[A-Z]|hsa_"), "amd"),
    (re.compile(r"cuda[A-Z]|cu[A-Z]"), "nvidia"),
)
"""Beginnings of the names of calls into the driver."""


def accelerator(table: Table) -> Accelerator:
    """The kind of GPU by its devices' names and properties and by the host's calls. With several kinds, only
    their common properties are set."""
    vendors = {_vendor(each.name or "", _OF_VENDOR) for each in table.devices} - {None}
    if not vendors:
        calls = np.unique(table.host.name[table.host.kind == HostKind.CALL])
        vendors = {_vendor(table.names[each], _OF_CALL) for each in calls} - {None}
    vendor = next(iter(vendors)) if len(vendors) == 1 else None
    stated = [each.compute_capability for each in table.devices]
    known = [each for each in stated if each is not None]
    if vendor != "nvidia" or not known or len(known) < len(stated):
        return Accelerator(vendor=vendor)
    return Accelerator(vendor=vendor, compute_capability=min(known))


def _vendor(name: str, known: tuple[tuple[re.Pattern[str], Vendor], ...]) -> Vendor | None:
    return next((vendor for begin, vendor in known if begin.match(name)), None)
