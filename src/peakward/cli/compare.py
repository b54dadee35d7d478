"""Compare two studies case by case; exit 1 on a regression."""

from typing import Annotated

import msgspec
import tyro

from peakward.api import stored
from peakward.cli import output, parse
from peakward.cli.vocabulary import ResultOptions, Results, option, required
from peakward.records.errors import PeakwardError
from peakward.records.study import Study
from peakward.report import comparison as comparison_report
from peakward.report import provenance
from peakward.report.document import Fact
from peakward.studies import comparison


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Compare two studies case by case; exit 1 on a regression.

    A study is a JSON file (`--json` output), a database (its last study), FILE.db:ID, or an id, the
    beginning of one, or "last" in `--db`. To gate a change: `peakward bench --db before.db …`, make
    the change, `peakward bench --db after.db …`, `peakward compare before.db after.db`. A case that
    ran before and is missing after is a regression too.
    """

    studies: Annotated[tuple[str, ...], tyro.conf.Positional, required("BEFORE AFTER")]
    """The study before, and the one after."""
    threshold: Annotated[str, option("SHARE", "3%")] = "3%"
    """Changes within this share of the step time do not matter: 0.03 or 3%."""
    across: bool = False
    """Compare although the environments differ; the report names the differences."""
    results: Results = ResultOptions()


def main(options: Options, command: str) -> int:
    """Print the comparison; 1 where a case got slower beyond the threshold, stopped running or is missing."""
    if len(options.studies) != 2:
        raise PeakwardError(
            f"expected two studies to compare, got {len(options.studies)}: "
            "name the one before and the one after"
        )
    threshold = parse.share(options.threshold, "--threshold")
    targets = output.targets(options.results)
    before, after = (stored.load(reference, options.results.db) for reference in options.studies)
    comparison.refuse_to_mix(before, after, across=options.across)
    found = comparison.changes(before, after, threshold=threshold)
    study = comparison.study(before, after, found, threshold=threshold, command=command)
    output.show(
        study,
        targets,
        as_json=options.results.json,
        document=comparison_report.document(
            title=study.title,
            headline=f"{comparison.verdict(found)}. {study.conclusions[0].text}",
            sides=(_side("before", before), _side("after", after)),
            tables=study.tables,
            notes=study.notes,
        ),
    )
    return 1 if comparison.regressions(found) else 0


def _side(name: str, study: Study) -> Fact:
    where = study.environment
    return Fact(
        name=name,
        value=f"{study.id[:12]}, {study.started_at}, {provenance.device(where)}, "
        f"{provenance.software(where)}, Peakward {where.peakward}",
    )
