"""Show a stored study again: terminal, Markdown, HTML or JSON."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from peakward.cli import output, stored
from peakward.cli.vocabulary import ResultOptions, Results, option


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Show a stored study again: terminal, Markdown, HTML or JSON."""

    study: Annotated[str, tyro.conf.Positional, option("STUDY", "last")] = "last"
    """An id, the beginning of one, or "last"; or a JSON file, or a database (its last study)."""
    list: bool = False
    """List the stored studies, newest first."""
    results: Results = ResultOptions()


def main(options: Options, _command: str) -> int:
    """Print, and write the files asked for."""
    if options.list:
        _list(Path(options.results.db), as_json=options.results.json)
        return 0
    targets = output.targets(options.results)
    output.show_study(
        stored.load(options.study, options.results.db), targets, as_json=options.results.json
    )
    return 0


def _list(db: Path, *, as_json: bool) -> None:
    from peakward.store.database import Store

    with Store.open_read_only(db) as store:
        entries = store.studies()
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(entries) + b"\n")
        return
    for entry in entries:
        state = "" if entry.complete else "  (incomplete)"
        print(f"{entry.id[:12]}  {entry.started_at}  {entry.name:<13} {entry.title}{state}")
    if not entries:
        print("no studies stored yet: `peakward run` makes one")
