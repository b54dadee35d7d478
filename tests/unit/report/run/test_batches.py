"""Larger batches on the page of a run."""

import msgspec

from peakward.records.study import Column, Conclusion, Table
from peakward.report.document import Items, TableBlock
from peakward.report.run.batches import TITLE, section


def test_nothing_without_its_table(run_study):
    assert section(run_study).blocks == ()


def test_its_table_and_its_sentence(run_study):
    table = Table(title=TITLE, columns=(Column(name="batch size"),), rows=((8,),))
    said = Conclusion(text="Most tokens/s: 8.", evidence=())
    study = msgspec.structs.replace(run_study, tables=(table,), conclusions=(said,))
    assert section(study).blocks == (TableBlock(table=table), Items(texts=(said.text,)))
