"""Findings of a watched loop, printed while it runs."""

import msgspec

from peakward.records.finding import Diagnosis, Finding
from peakward.report.watch import Announcer, document

FOUND = Finding(
    code="LOOP001", title="The loop waits for its data", cause="c", evidence=(),
    advice="more workers", held_back_s=0.2, beyond_s=0.2, share=0.5, bound=2.0,
)  # fmt: skip
OTHER = msgspec.structs.replace(FOUND, code="LOOP002", title="Collections")


def diagnosis(*findings):
    return Diagnosis(
        subject="the watched loop", case=None, whole_s=0.4, basis="watched step",
        findings=findings, abstentions=(), clean=(),
    )  # fmt: skip


def test_it_says_what_and_what_to_do():
    found = document(diagnosis(FOUND))
    assert found.headline == "1 finding, of a step of 400 ms"
    assert found.blocks[0].table.rows[0][0] == "LOOP001"
    assert found.blocks[1].texts == ("LOOP001: more workers.",)


def test_only_what_is_new_is_printed(capsys):
    say = Announcer()
    say(diagnosis(FOUND))
    assert "The loop waits for its data" in capsys.readouterr().err
    say(diagnosis(FOUND))
    say(diagnosis())
    assert capsys.readouterr() == ("", "")
    say(diagnosis(FOUND, OTHER))
    out, err = capsys.readouterr()
    assert "Collections" in err and out == ""


def test_it_is_as_wide_as_the_terminal_is_said_to_be(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    Announcer()(
        diagnosis(msgspec.structs.replace(FOUND, advice="more workers and prefetching, " * 5))
    )
    said = capsys.readouterr().err.splitlines()
    assert 40 < max(map(len, said)) <= 60
