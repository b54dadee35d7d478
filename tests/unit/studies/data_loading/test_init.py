"""What `data-loading` puts together."""

import msgspec

from peakward.records.case import Source
from peakward.studies import data_loading
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope


def notes(setting):
    return " ".join(data_loading.parts(Readings(), setting).notes)


def test_bytes_taken_for_want_of_byte_pairs_are_said(setting):
    bare = setting("small", "cpu")
    full = msgspec.structs.replace(bare, has_tokenizers=True)
    chosen = setting(Scope("small", tokenizer=Source("bytes")), "cpu")
    assert "pip install 'peakward[data]'" in notes(bare)
    assert "pip install" not in notes(full) + notes(chosen)


def test_copies_that_only_a_gpu_has_are_said_to_be_left_out_on_a_cpu(setting):
    assert "Not run: pinned memory" in notes(setting("small", "cpu"))
    assert "Not run: pinned memory" not in notes(setting())


def test_of_nothing_there_are_no_conclusions(setting):
    assert data_loading.parts(Readings(), setting()).conclusions == ()
