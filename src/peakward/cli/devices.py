"""List known devices, probe this machine, or measure its rates."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from peakward.api.machine import Machine, this_machine
from peakward.api.measuring import MAX_RANKS, calibrated
from peakward.cli import output, parse, watch
from peakward.cli.vocabulary import option
from peakward.hardware import devices
from peakward.records import check, codec
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment
from peakward.report import devices as pages
from peakward.report.calibration import calibration as calibration_page

ACTIONS = ("list", "probe", "calibrate")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """List known devices, probe this machine, or measure its rates.

    list: what is catalogued, with datasheet figures. probe: what this machine is, and which
    catalogued device its driver means. calibrate: measure its ceilings, which every report takes
    from there, and what a time model needs beside them (matmul rates by shape, bandwidth by size,
    launch costs, attention, cache levels, latency, host link, disk), and store them. With --gpus it
    measures the collectives between so many devices alone, and adds them to what is stored.
    """

    action: Annotated[str, tyro.conf.Positional, option("ACTION", "list")] = "list"
    """list, probe or calibrate."""
    name: Annotated[str | None, tyro.conf.Positional, option("NAME", "all")] = None
    """With list: only the devices of that key, a part of one, or that name of a driver."""
    sources: bool = False
    """With list: where every figure was read."""
    device: Annotated[
        str | None,
        option("cpu|cuda", "cuda where there is one"),
    ] = None
    """The device to probe or calibrate."""
    gpus: Annotated[str, option("N", "1")] = "1"
    """With calibrate: all-reduce, all-gather, reduce-scatter, all-to-all and point to point between so
    many GPUs, by size. With --device cpu, or without a GPU, processes over gloo."""
    db: Annotated[str, option("FILE", "peakward.db")] = "peakward.db"
    """Where a calibration is stored."""
    json: bool = False
    """Print the records as JSON, and nothing else."""


def main(given: Options, _command: str) -> int:
    """Do the action."""
    action = check.one_of(given.action, ACTIONS, "an action")
    if action == "list":
        return _list(given.name, with_sources=given.sources, as_json=given.json)
    if given.name is not None:
        raise PeakwardError(
            f"expected no device beside {action}, got {given.name!r}: list shows one"
        )
    here = this_machine(given.device)
    return _probe(here, as_json=given.json) if action == "probe" else _calibrate(here, given)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """This machine: the record that `probe --json` prints."""

    environment: Environment
    has_compiler: bool
    device: Device | None
    """The catalogued device that the driver's name and memory mean."""


def _list(name: str | None, *, with_sources: bool, as_json: bool) -> int:
    known = devices.devices() if name is None else devices.devices_named(name)
    if as_json:
        _print_json(msgspec.json.encode(known))
    else:
        output.print_document(pages.catalogue(known, with_sources=with_sources))
    return 0


def _probe(here: Machine, *, as_json: bool) -> int:
    where = here.environment
    found = Probe(
        environment=where,
        has_compiler=here.has_compiler,
        device=devices.match(where.device_name, where.device_memory_bytes),
    )
    if as_json:
        _print_json(codec.to_json(found))
    else:
        output.print_document(pages.probe(where, found.device, has_compiler=found.has_compiler))
    return 0


def _calibrate(here: Machine, given: Options) -> int:
    n_ranks = parse.whole(given.gpus, "--gpus", low=1, high=MAX_RANKS)
    with watch.budget("calibrate", None) as watching:
        calibration = calibrated(here, Path(given.db), watching, watching.on_stage, n_ranks=n_ranks)
    if given.json:
        _print_json(codec.to_json(calibration))
    else:
        where = here.environment
        known = devices.match(where.device_name, where.device_memory_bytes)
        output.print_document(calibration_page(calibration, known))
    return 0


def _print_json(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
