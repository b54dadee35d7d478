"""Text, tokenizer and workers as a user writes them."""

import pytest

from peakward.cli import text_options
from peakward.models.presets import model
from peakward.records.case import ModelCase, Workload
from peakward.records.data import Source, TextData
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
    assert text_options.text("python-topics") == Source("python-topics")
    assert text_options.text(str(tmp_path / "a.txt")).name == str(tmp_path / "a.txt")
    assert text_options.tokenizer("bytes") == Source("bytes")
    with pytest.raises(PeakwardError, match="which is not there"):
        text_options.text("no such file")
    with pytest.raises(PeakwardError, match="as tokenizer"):
        text_options.tokenizer("no such file")


def test_workers():
    assert text_options.workers("0,4", 2) == (0, 4)
    for given in ("9", "-1", "two", "0,", "1025"):
        with pytest.raises(PeakwardError):
            text_options.workers(given, 2)


def test_what_does_not_fit_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    short = text_options.text(str(tmp_path / "a.txt"))
    text_options.refuse_unfit([fed(micro()), fed(model("tiny"))])
    with pytest.raises(PeakwardError, match="at least 17 tokens"):
        text_options.refuse_unfit([fed(micro()), fed(micro(), text=short)])
