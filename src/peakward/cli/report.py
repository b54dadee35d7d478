"""Show a stored study again: terminal, Markdown, HTML or JSON."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from peakward.api import results, stored
from peakward.cli import output
from peakward.cli.vocabulary import ResultOptions, Results, option
from peakward.records.errors import PeakwardError
from peakward.records.result import Result
from peakward.records.study import Column, Study, Table
from peakward.report.columns import without_empty
from peakward.report.document import Document, TableBlock
from peakward.studies.registry import STUDIES


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Show a stored study again: terminal, Markdown, HTML or JSON.

    A JSON file may hold any result: what a command printed with --json, or what `.save` of Python wrote.

    Tables and sentences of a study or a bench are derived anew from its measurements, so that they are
    those of this version; --json prints the record as it was stored.

    With --ledger: what was predicted of every lever that was ever tried, and what was measured, over
    all runs of `--db`, or of the databases and JSON files of studies that are named.
    """

    studies: Annotated[tuple[str, ...], tyro.conf.Positional, option("STUDY", "last")] = ()
    """An id, the beginning of one, or "last"; or a JSON file, or a database (its last study)."""
    ledger: bool = False
    """Show by lever and device how predictions fared; STUDY is then any number of files."""
    list: bool = False
    """List the stored studies, newest first."""
    results: Results = ResultOptions()


def main(options: Options, _command: str) -> int:
    """Print, and write the files asked for."""
    if options.list and options.ledger:
        raise PeakwardError("expected --list or --ledger, got both")
    if options.list:
        _list(Path(options.results.db), as_json=options.results.json)
        return 0
    targets = output.targets(options.results)
    if options.ledger:
        _ledger(options, targets)
        return 0
    found = _found(_only(options.studies), options.results.db)
    shown = told_today(found) if isinstance(found, Study) else found
    record = results.record(found)
    output.show(record, targets, as_json=options.results.json, document=results.document(shown))
    return 0


def _found(reference: str, db: str) -> Result:
    """The study that a word means, or whatever result a JSON file holds."""
    path = Path(reference)
    if path.is_file() and not stored.is_database(path):
        return results.load(path)
    return stored.load(reference, db)


def told_today(study: Study) -> Study:
    """The study with today's tables and sentences, or with its own and the reason.

    What `run` and `compare` store is told from the record whenever it is shown.
    """
    if study.name != "bench" and study.name not in STUDIES:
        return study
    # Here, since a study's grid loads what `--list` and `--ledger` do not need.
    from peakward.cli.study import asked_scope
    from peakward.studies.retell import as_stored, retold, retold_bench

    try:
        if study.name == "bench":
            return retold_bench(study)
        return retold(study, asked_scope(study.command, study.environment))
    except PeakwardError as error:
        return as_stored(study, str(error))


def _ledger(options: Options, targets: tuple[output.Target, ...]) -> None:
    from peakward.report.lever_ledger import document

    found = stored.lever_ledger(options.studies, options.results.db)
    output.show(found, targets, as_json=options.results.json, document=document(found))


def _only(studies: tuple[str, ...]) -> str:
    if len(studies) > 1:
        raise PeakwardError(
            f"expected one study, got {len(studies)}: name one, or add --ledger to read all of them"
        )
    return studies[0] if studies else "last"


def _list(db: Path, *, as_json: bool) -> None:
    from peakward.store.database import Store

    with Store.open_read_only(db) as store:
        entries = store.studies()
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(entries) + b"\n")
        return
    rows = tuple(
        (
            entry.id[:12],
            entry.started_at,
            entry.name,
            entry.title,
            None if entry.complete else "incomplete",
        )
        for entry in entries
    )
    columns = (
        Column(name="id", unit="name"),
        Column(name="started"),
        Column(name="study"),
        Column(name="title"),
        Column(name="state"),
    )
    table = without_empty(Table(title="", columns=columns, rows=rows))
    output.print_document(
        Document(
            title=f"Studies in {db}",
            headline="`peakward report ID` shows one"
            if rows
            else "no studies stored yet: `peakward run` makes one",
            blocks=(TableBlock(table=table),) if rows else (),
        )
    )
