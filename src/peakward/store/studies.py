"""Finds stored studies by the references that users give."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from peakward.records.errors import PeakwardError
from peakward.store.rows import CREATED

_N_NAMED = 3
"""The number of ids that an error message offers."""


class StudyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored study, without its content."""

    id: str
    name: str
    title: str
    started_at: str
    complete: bool


def entries(connection: sqlite3.Connection) -> tuple[StudyEntry, ...]:
    """All studies, newest first."""
    found = connection.execute(
        f"SELECT id, CAST(name AS TEXT), CAST(title AS TEXT), {CREATED}, complete FROM study"
        " WHERE typeof(id) = 'text' ORDER BY created DESC, rowid DESC"
    )
    return tuple(
        StudyEntry(id=id_, name=name, title=title, started_at=created, complete=bool(complete))
        for id_, name, title, created, complete in found
    )


def id_of(ref: str, known: Sequence[StudyEntry], path: Path) -> str:
    """The full id for `ref` among the entries `known`, newest first.

    Raises:
        PeakwardError: it means none of them, or several.
    """
    if not known:
        raise PeakwardError(
            f"expected a study in {path}, got none stored yet: `peakward run` makes one"
        )
    if ref == "last":
        return known[0].id
    ids = [entry.id for entry in known]
    matching = [ref] if ref in ids else [id_ for id_ in ids if id_.startswith(ref)]
    if len(matching) == 1:
        return matching[0]
    offered = ", ".join((matching or ids)[:_N_NAMED])
    found = f"{len(matching)} that begin so" if matching else "no such one"
    raise PeakwardError(
        f'expected the id of a study in {path}, its unique beginning or "last", got {ref!r}, '
        f"{found}: name one, such as {offered}"
    )
