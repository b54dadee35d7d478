"""Stored studies, shown again."""

from pathlib import Path

import msgspec
import pytest

from peakward.cli.main import main
from peakward.records import codec
from peakward.records.study import Conclusion, Study
from peakward.store.database import Store
from stored_results import index


@pytest.fixture
def kept(in_tmp, make_study, make_measurement):
    older = make_study(
        make_measurement(8), title="The older", started_at="2026-01-01T00:00:00+00:00"
    )
    newer = make_study(
        make_measurement(16),
        title="The newer",
        started_at="2026-01-02T00:00:00+00:00",
        complete=False,
    )
    with Store.open(in_tmp / "peakward.db") as store:
        store.add_study(older)
        store.add_study(newer)
    return older, newer


def test_alone_it_shows_the_last(kept, capsys):
    assert main(["report"]) == 0
    assert "The newer" in capsys.readouterr().out


def test_an_older_one_is_shown_by_its_id_and_as_json_it_is_the_record(kept, capsysbinary):
    older, _ = kept
    assert main(["report", older.id, "--json"]) == 0
    assert codec.from_json(capsysbinary.readouterr().out, Study) == older


def test_files_are_written_once(kept, capsys):
    assert main(["report", "--markdown", "a.md", "--html", "a.html"]) == 0
    assert "The newer" in Path("a.md").read_text()
    assert "The newer" in Path("a.html").read_text()
    assert main(["report", "--markdown", "a.md"]) == 2
    assert main(["report", "--markdown", "a.md", "--force"]) == 0


def test_the_list_is_newest_first(kept, capsys):
    older, newer = kept
    assert main(["report", "--list"]) == 0
    *_, first, second = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert first.startswith(newer.id[:12])
    assert first.endswith("The newer  incomplete")
    assert second.startswith(older.id[:12])


def test_an_empty_database_says_what_fills_it(in_tmp, capsys):
    Store.open(in_tmp / "peakward.db").close()
    assert main(["report", "--list"]) == 0
    assert "`peakward run`" in capsys.readouterr().out
    assert main(["report"]) == 2
    assert capsys.readouterr().err.startswith("peakward: expected ")


def test_a_stored_study_is_shown_with_the_sentences_of_today(in_tmp, capsys):
    study = codec.from_json(index()["2026-11-21-h200-study-attention-parts"].read(), Study)
    stale = Conclusion(text="What the code of yesterday said.", evidence=())
    Path("stale.json").write_bytes(
        codec.to_json(msgspec.structs.replace(study, conclusions=(stale,)))
    )
    assert main(["report", "stale.json", "--markdown", "a.md"]) == 0
    shown = Path("a.md").read_text()
    assert stale.text not in shown
    assert "softmax forward 13.1%" in shown
    assert "Measured with Peakward 0.1.0 on 2026-11-21." in shown


def test_a_stored_study_that_cannot_be_told_anew_says_so(in_tmp, capsys):
    study = codec.from_json(index()["2026-11-21-h200-study-attention-parts"].read(), Study)
    line = "peakward study attention-parts --model hf:gone/config.json"
    Path("a.json").write_bytes(codec.to_json(msgspec.structs.replace(study, command=line)))
    assert main(["report", "a.json", "--markdown", "a.md"]) == 0
    shown = Path("a.md").read_text()
    assert study.conclusions[0].text in shown
    assert "are those that Peakward 0.1.0 stored on 2026-11-21." in shown
    assert "cannot derive them anew: expected" in shown
