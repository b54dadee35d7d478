"""The common behaviour of all results of the Python API: display, conversion to dicts and tables, saving."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

LONGEST_TEXT = 60
LONGEST_PART = 100
LONGEST_REPR = 400
"""Lengths in characters. A notebook shows the result of a cell's last line by its repr, and a record may hold
40 kB."""


class Result:
    """A result of the Python API. `pw.html` and `pw.markdown` render it as a report."""

    __slots__ = ()

    ROWS: ClassVar[tuple[str, ...]] = ()
    """Fields that make the table. The first field that is not empty counts. Empty: the record itself."""

    def __repr__(self) -> str:
        said = ", ".join(_said(self))
        short = said if len(said) <= LONGEST_REPR else f"{said[:LONGEST_REPR]}…"
        return f"{type(self).__name__}({short})"

    def _repr_html_(self) -> str:
        """The report, as Jupyter shows it."""
        return str(_results().notebook(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain dicts, lists and numbers: the output of `--json`, without the schema
        version."""
        found: dict[str, Any] = msgspec.to_builtins(_results().record(self))
        return found

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each case, trial, kernel, finding and so on.

        Raises:
            PeakwardError: pandas is not installed.
        """
        return _results().frame(self)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the record as JSON. `peakward report FILE` and `pw.load` read it back.

        The file is complete or not written at all.

        Raises:
            PeakwardError: the file exists, unless `force` is given; or it cannot be written.
        """
        _results().save(self, path, force=force)


def _results() -> Any:
    # Imported by name, because records import nothing of ours and reports stand above all rooms.
    return importlib.import_module("peakward.api.results")


def _said(found: object) -> Iterable[str]:
    """The fields that differ from their defaults, each shortened."""
    assert isinstance(found, msgspec.Struct)
    for field in msgspec.structs.fields(found):
        value = getattr(found, field.name)
        if value != field.default and value not in (None, (), {}):
            yield f"{field.name}={_short(value)}"


def _short(value: object) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}…")
    if isinstance(value, msgspec.Struct):
        whole = f"{type(value).__name__}({', '.join(_said(value))})"
        return whole if len(whole) <= LONGEST_PART else f"{type(value).__name__}(…)"
    if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        return f"<{len(value)} {type(value[0]).__name__}>"
    if isinstance(value, tuple | dict):
        whole = repr(value)
        return whole if len(whole) <= LONGEST_TEXT else f"<{len(value)}>"
    return repr(value)
