"""Text, tokenizer and workers as a user writes them."""

import pytest

from peakward.cli import study
from peakward.lab.data import text, tokenizer
from peakward.models.presets import model
from peakward.records.case import ModelCase, Source, TextData, Workload
from peakward.records.errors import PeakwardError
from peakward.studies.scope import micro


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fed(shape, seq_len=16, **data):
    found = TextData(**{"text": Source("python-topics"), **data})
    return ModelCase(
        model=shape, workload=Workload(batch_size=1, seq_len=seq_len, data=found), device="cpu"
    )


def test_names_and_paths(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    assert text.source("python-topics") == Source("python-topics")
    assert text.source(str(tmp_path / "a.txt")).name == str(tmp_path / "a.txt")
    assert tokenizer.source("bytes") == Source("bytes")
    with pytest.raises(PeakwardError, match="which is not there"):
        text.source("no such file")
    with pytest.raises(PeakwardError, match="as tokenizer"):
        tokenizer.source("no such file")


def test_workers():
    assert study._workers("0,4", 2) == (0, 4)
    for given in ("9", "-1", "two", "0,", "1025"):
        with pytest.raises(PeakwardError):
            study._workers(given, 2)


def test_what_does_not_fit_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    short = text.source(str(tmp_path / "a.txt"))
    study._prepare_text([fed(micro()), fed(model("tiny"))])
    with pytest.raises(PeakwardError, match="at least 17 tokens"):
        study._prepare_text([fed(micro()), fed(micro(), text=short)])
