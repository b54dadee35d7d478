"""The accelerators of devices.toml, found by a key or by a driver's name.

A driver's name matches if it is known exactly, or if every word of it is a word of the accelerator. If
the memory is known, it must fit too. A table that matched parts of names once gave an L40S the L4's
peak, and an unknown card that of another. There is no fallback: a name that fits several accelerators
means all of them, and one with any unknown word means none. CPUs are not catalogued; they are
calibrated.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from peakward.records.device import Device
from peakward.records.errors import PeakwardError, look_up

# A "GB" on the box is a GiB in the driver, less what error correction and the driver keep. Lowest
# known: a T4 reports 15,637,086,208 bytes, 0.910 of 16 GiB. Highest: exactly all of it (A100
# 40,960 MiB). An H200 reports 143,771 MiB, 0.996 of 141 GiB, though that is 150.8e9 bytes.
MEMORY_SHARE = (0.90, 1.005)
"""The range of the memory that a matching driver may report, as a share of memory_gb · 2^30."""
_BOARD_NUMBER = re.compile(r"[ -]PG[0-9]{3}-[0-9]{3}$")
"""NVIDIA's number of the circuit board, which some drivers add to the name: "NVIDIA A100-PG506-207"."""
PROCESS_SHARE = 0.97
"""The smallest share of the reported memory that the driver leaves to processes, from torch's
out-of-memory messages in public logs: 14,913 of a T4's 15,360 MiB, 81,050 of an A100's 81,920, 143,155
of an H200's 143,771."""


@cache
def devices() -> tuple[Device, ...]:
    """Every catalogued accelerator, oldest first."""
    document = tomllib.loads(
        files("peakward.hardware").joinpath("devices.toml").read_text(encoding="utf-8")
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


def device(text: str) -> Device:
    """The one accelerator that a text means, as `devices_named` reads it.

    Raises:
        PeakwardError: it means none, or several; names them, or the nearest ones.
    """
    named = devices_named(text)
    if len(named) > 1:
        raise PeakwardError(
            f"expected one device, got {text!r}, which is {either(named)}: name one"
        )
    return named[0]


def devices_named(text: str) -> tuple[Device, ...]:
    """The accelerators of that key, of that abbreviation of a key, or of that driver's name.

    `h100-sxm` means `h100-sxm-80`. `a100-80` and `NVIDIA A100 80GB` mean both `a100-sxm-80` and
    `a100-pcie-80`. Capitals do not matter in keys. No key is an abbreviation of another.

    Raises:
        PeakwardError: No accelerator has that name; the error lists the nearest ones.
    """
    asked = set(text.lower().split("-"))
    named = tuple(each for each in devices() if asked <= set(each.key.split("-")))
    named = named or meant(text, None)
    return named or (look_up("a device", text, {each.key: each for each in devices()}),)


def either(named: Sequence[Device]) -> str:
    """Their keys in a sentence: "h100-sxm-80 or h100-pcie-80"."""
    *others, last = (each.key for each in named)
    return f"{', '.join(others)} or {last}" if others else last


def least_memory_bytes(device: Device) -> int:
    """The memory that a process can take at least."""
    reported = device.driver_memory_mib
    if reported is None:
        return math.floor(MEMORY_SHARE[0] * device.memory_gb.value * 2**30)
    return math.floor(PROCESS_SHARE * reported.value * 2**20)


def meant(driver_name: str, memory_bytes: int | None) -> tuple[Device, ...]:
    """Every accelerator that a driver's name may mean; none where the name is not catalogued.

    Args:
        driver_name: The name exactly as the driver gives it.
        memory_bytes: The device's total memory as NVML or torch reports it, or None where it is
        unknown. A known name with another size is another device: a slice of one, or a modified board.
    """
    exact = tuple(each for each in devices() if driver_name in each.driver_names)
    words = _words(driver_name)
    named = exact or tuple(each for each in devices() if _is_said(words, each))
    return tuple(each for each in named if memory_bytes is None or _holds(each, memory_bytes))


def match(driver_name: str, memory_bytes: int | None) -> Device | None:
    """The one accelerator that a driver's name means, as `meant` reads it; None where it may be several."""
    named = meant(driver_name, memory_bytes)
    return named[0] if len(named) == 1 else None


def meant_by_all(named: Iterable[tuple[str | None, int | None]]) -> tuple[Device, ...]:
    """Every accelerator that each of these names and memories in bytes may mean.

    The result is empty where they are several models, or one that is not catalogued.
    """
    rows = [meant(name, memory_bytes) if name else () for name, memory_bytes in set(named)]
    return tuple(each for each in devices() if rows and all(each in row for row in rows))


def match_all(named: Iterable[tuple[str | None, int | None]]) -> Device | None:
    """The one accelerator that all of these names and memories in bytes mean, as `match` does."""
    found = meant_by_all(named)
    return found[0] if len(found) == 1 else None


def _holds(device: Device, memory_bytes: int) -> bool:
    """Whether a driver may report that much memory for the device."""
    lowest, highest = MEMORY_SHARE
    sold_bytes = device.memory_gb.value * 2**30
    return lowest * sold_bytes <= memory_bytes <= highest * sold_bytes


def _words(driver_name: str) -> frozenset[str]:
    return frozenset(re.split("[ -]", _BOARD_NUMBER.sub("", driver_name)))


def _is_said(words: frozenset[str], device: Device) -> bool:
    """Whether each word of the name is one of the accelerator's, and the name has every word of its
    model."""
    *parts, memory = device.key.upper().split("-")
    model = {part for part in parts if part != "PCIE" and not part.startswith("SXM")}
    known = {word for name in device.driver_names for word in _words(name)}
    known |= {*parts, f"{memory}GB"}
    known |= {f"SXM{generation}" for generation in "345"} if "SXM" in parts else set()
    known |= {"PCIe"} if "PCIE" in parts else set()
    return model <= words <= known


PRECISIONS = ("bf16-mixed", "bf16")
CAPABILITIES = (9, 10)
"""Major compute capabilities."""
WIDTHS = 8
"""The kernel's rows come in pieces of 16 bytes: widths must divide by so many elements."""
