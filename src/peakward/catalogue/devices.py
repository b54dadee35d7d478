"""The accelerators of devices.toml, and which of them a driver means.

A device is matched by the driver's exact name *and* by its memory: a table that matched parts of
names has given an L40S the L4's peak, and an unknown card some other card's. Nothing falls back:
what is not in the catalogue is None. CPUs are not catalogued; they are calibrated.
"""

import math
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from peakward.catalogue.names import look_up
from peakward.records.device import Device

# A "GB" on the box is a GiB in the driver, less what error correction and the driver keep. Lowest
# known: a T4 reports 15,637,086,208 bytes, 0.910 of 16 GiB. Highest: exactly all of it (A100
# 40,960 MiB). An H200 reports 143,771 MiB, 0.996 of 141 GiB, though that is 150.8e9 bytes.
MEMORY_SHARE = (0.90, 1.005)
"""Of memory_gb · 2^30, what a driver may report for the device to match."""

PROCESS_SHARE = 0.97
"""Of what a driver reports, what it leaves to processes at least, by torch's out-of-memory messages in
public logs: 14,913 of a T4's 15,360 MiB, 81,050 of an A100's 81,920, 143,155 of an H200's 143,771."""


@cache
def devices() -> tuple[Device, ...]:
    """Every catalogued accelerator, oldest first."""
    document = tomllib.loads(
        files("peakward.catalogue").joinpath("devices.toml").read_text(encoding="utf-8")
    )
    sources: dict[str, str] = document["sources"]
    return tuple(_device(row, sources) for row in document["device"])


def _device(row: dict[str, Any], sources: dict[str, str]) -> Device:
    return msgspec.convert(_spell_out(row, sources), Device)


def _spell_out(value: Any, sources: dict[str, str]) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        key: sources[inner] if key == "source" else _spell_out(inner, sources)
        for key, inner in value.items()
    }


def device(key: str) -> Device:
    """The accelerator of that key, such as `h100-sxm-80`.

    Raises:
        PeakwardError: no such device; names the nearest ones.
    """
    return look_up("a device", key, {each.key: each for each in devices()})


def devices_named(text: str) -> tuple[Device, ...]:
    """The accelerator of that key, or all whose keys have every part of an abbreviation.

    `a100-80` means `a100-sxm-80` and `a100-pcie-80`. No key is an abbreviation of another.

    Raises:
        PeakwardError: none is named so; names the nearest ones.
    """
    asked = set(text.split("-"))
    named = tuple(each for each in devices() if asked <= set(each.key.split("-")))
    return named or (device(text),)


def least_memory_bytes(device: Device) -> int:
    """What a process may take of it at least."""
    reported = device.driver_memory_mib
    if reported is None:
        return math.floor(MEMORY_SHARE[0] * device.memory_gb.value * 2**30)
    return math.floor(PROCESS_SHARE * reported.value * 2**20)


def match(driver_name: str, memory_bytes: int) -> Device | None:
    """The accelerator that a driver names, or None where the catalogue does not know it.

    Args:
        driver_name: exactly as the driver gives it.
        memory_bytes: the device's total memory as NVML or torch reports it. Of a name that is
            known, another size is another device: a slice of one, or a modified board.
    """
    lowest, highest = MEMORY_SHARE
    for each in devices():
        sold_bytes = each.memory_gb.value * 2**30
        if (
            driver_name in each.driver_names
            and lowest * sold_bytes <= memory_bytes <= highest * sold_bytes
        ):
            return each
    return None


def match_all(named: Iterable[tuple[str | None, int | None]]) -> Device | None:
    """The one accelerator that all of these names and memories in bytes mean, as `match` does.

    None where they are several models, or one that the catalogue does not know.
    """
    models = set(named)
    if len(models) != 1:
        return None
    driver_name, memory_bytes = models.pop()
    return match(driver_name, memory_bytes) if driver_name and memory_bytes else None
