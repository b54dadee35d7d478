"""Text in a case, and its key."""

import msgspec

from peakward.models.presets import model
from peakward.records.case import Case, ModelCase, Workload, case_key
from peakward.records.data import Source, TextData

CASE = ModelCase(model=model("tiny"), workload=Workload(batch_size=1, seq_len=16), device="cpu")


def fed(**data):
    found = TextData(**{"text": Source("python-topics"), **data})
    work = msgspec.structs.replace(CASE.workload, data=found)
    return msgspec.structs.replace(CASE, workload=work)


def test_every_setting_is_in_the_key():
    cases = [
        CASE,
        fed(),
        fed(text=Source("/a")),
        fed(text=Source("/a", "1")),
        fed(tokenizer=Source("bpe")),
        fed(tokenise="on-the-fly"),
        fed(n_workers=1),
        fed(pin_memory=True),
        fed(non_blocking=True),
        fed(n_ranks=2),
        fed(sampler="same"),
    ]
    assert len({case_key(each) for each in cases}) == len(cases)
    assert len(set(cases)) == len(cases)


def test_a_case_comes_back_from_json():
    assert msgspec.json.decode(msgspec.json.encode(fed()), type=Case) == fed()
