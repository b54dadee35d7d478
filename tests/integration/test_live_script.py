"""The benchmark of a script with planted faults, on a model of milliseconds."""

import msgspec
import pytest


@pytest.mark.full
def test_all_arms_are_timed_and_what_cannot_be_pulled_is_told(in_tmp):
    import live_script

    sizes = live_script.Sizes(
        n_layers=2, width=32, n_heads=2, vocab_size=50, batch_size=2, seq_len=16, n_words=100,
        n_steps=3,
    )  # fmt: skip
    found = live_script.measured("cpu", 15.0, in_tmp / "peakward.db", sizes)
    assert [each.name for each in found.arms] == ["faulty", "investigated", "mended"]
    assert all(len(each.rounds_ms) == live_script.ROUNDS for each in found.arms)
    assert "in the place of its loss" in found.told["fused-loss"]
    assert msgspec.json.decode(msgspec.json.encode(found), type=live_script.Result) == found


def test_a_sample_is_that_of_its_place():
    import live_script

    sizes = msgspec.structs.replace(live_script.SIZES["cpu"], n_words=10)
    words = live_script.Words(sizes)
    assert words[3].shape == (sizes.seq_len + 1,)
    assert (words[3] == words[3]).all()
    assert not (words[3] == words[4]).all()
