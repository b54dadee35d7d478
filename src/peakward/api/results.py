"""Makes of any result its report, its table and its file. Above all rooms, loaded when asked for.

A result is a record, or a trace or snapshot whose record says everything about it.
"""

import html as markup
import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from peakward import records
from peakward.records import check, codec
from peakward.records.calibration import Calibration
from peakward.records.debugging import Hunt
from peakward.records.device import Device
from peakward.records.errors import PeakwardError, quoted
from peakward.records.finding import Diagnosis, TraceReport
from peakward.records.generation import Generation, Serving
from peakward.records.layouts import LayoutPlan
from peakward.records.lever import LeverLedger
from peakward.records.memory_snapshot import MemoryReport
from peakward.records.plan import DryRun, Plan, ServingPlan
from peakward.records.profile import Profile
from peakward.records.result import Result
from peakward.records.study import Studies, Study
from peakward.report import (
    any_record,
    debugging,
    dry_run,
    findings,
    generation,
    layouts,
    serving_plan,
    study,
)
from peakward.report import lever_ledger as ledger_page
from peakward.report import memory as memory_pages
from peakward.report import plan as plan_pages
from peakward.report import profile as trace_pages
from peakward.report.document import Document
from peakward.store import artefacts
from peakward.store.connection import SQLITE_MAGIC

NOTEBOOK_HEIGHT = "32em"


def record(found: Result) -> msgspec.Struct:
    """The record that says everything about it."""
    if isinstance(found, msgspec.Struct):
        return found
    from peakward.api.traces import report
    from peakward.traces.memory.memory import Memory
    from peakward.traces.trace import Trace
    from peakward.tune.optimized import Optimized

    if isinstance(found, Optimized):
        return found.report
    if isinstance(found, Memory):
        return found.report()
    if isinstance(found, Trace):
        return report([found])
    raise PeakwardError(
        f"expected a result such as a study, a plan or a trace, got {quoted(found)}"
    )


def document(found: Result) -> Document:  # noqa: PLR0912 (a record each)
    """Its whole report."""
    match said := record(found):
        case Study():
            return study.document(said)
        case Studies():
            return study.together([study.document(each) for each in said.studies])
        case Plan():
            return plan_pages.whole(said)
        case ServingPlan():
            return serving_plan.document(said)
        case LayoutPlan():
            return layouts.whole(said)
        case TraceReport():
            return trace_pages.document(said)
        case Profile():
            return trace_pages.document(TraceReport(profiles=(said,), diagnoses=()))
        case MemoryReport():
            return memory_pages.whole(said)
        case Generation():
            return generation.document(said)
        case Hunt():
            return debugging.document(said)
        case Serving():
            return generation.served_document(said)
        case LeverLedger():
            return ledger_page.document(said)
        case DryRun():
            return dry_run.document(said)
        case Diagnosis():
            return findings.document(said)
        case Calibration() | Device():
            return _of_hardware(said)
        case _:
            return any_record.document(said)


def _of_hardware(said: Calibration | Device) -> Document:
    from peakward.hardware.devices import match
    from peakward.report import calibration, devices

    if isinstance(said, Device):
        return devices.catalogue((said,), with_sources=True)
    where = said.environment
    return calibration.calibration(said, match(where.device_name, where.device_memory_bytes))


def markdown(found: Result) -> str:
    """The report of any result as Markdown."""
    from peakward.report import markdown as view

    return view.render(document(found))


def html(found: Result) -> str:
    """The report of any result as one self-contained page."""
    from peakward.report import html as view

    return view.render(document(found))


def notebook(found: Result) -> str:
    """The page in a frame of its own, so that neither its style nor its script meets the notebook's."""
    page = markup.escape(html(found), quote=True)
    style = f"width:100%;height:{NOTEBOOK_HEIGHT};border:0;resize:vertical"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def frame(found: Result) -> Any:
    """The rows that one would tabulate, as a `pandas.DataFrame`."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        raise PeakwardError(
            "expected pandas for a DataFrame, got none installed: pip install pandas"
        ) from None
    return pandas.DataFrame(any_record.rows(record(found)))


def save(found: Result, path: str | Path, *, force: bool) -> None:
    """Write its record as JSON, whole or not at all."""
    place = check.path(path, "a file")
    artefacts.check(place, overwrite=check.flag(force, "force"), by="force=True")
    artefacts.write(place, codec.to_json(record(found)) + b"\n")


def load(path: str | Path) -> Result:
    """A result that `save` wrote, or that a command printed with `--json`.

    Raises:
        PeakwardError: the file cannot be read, or holds no such record.
    """
    try:
        data = check.path(path, "a result").read_bytes()
    except OSError as error:
        raise PeakwardError(f"expected a readable file, got {path}: {error.strerror}") from error
    if data.startswith(SQLITE_MAGIC):
        raise PeakwardError(
            f"expected a file that .save wrote, got the database {path}: name it to `pw.apply` or "
            "`peakward report`, which take a study of it"
        )
    try:
        return _read(data)
    except PeakwardError as error:
        raise PeakwardError(f"{path}: {error}") from error


def _read(data: bytes) -> Result:
    """A record says by its fields which it is: a study, where it is like none."""
    fields = codec.fields(data)
    kind = next((kind for kind in kinds() if _is_of(kind, fields)), Study)
    found: Result = codec.from_json(data, kind)
    return found


@cache
def kinds() -> tuple[type[Any], ...]:
    """Every kind of record that is a result."""
    found: dict[str, type[Any]] = {}
    for each in pkgutil.iter_modules(records.__path__):
        module = importlib.import_module(f"peakward.records.{each.name}")
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, Result) and value is not Result:
                found[name] = value
    return tuple(found.values())


def _is_of(kind: type[Any], fields: frozenset[str]) -> bool:
    config = kind.__struct_config__
    tag = frozenset((config.tag_field,)) if config.tag_field else frozenset()
    known = msgspec.structs.fields(kind)
    required = {each.encode_name for each in known if each.required}
    return required | tag <= fields <= {each.encode_name for each in known} | tag
