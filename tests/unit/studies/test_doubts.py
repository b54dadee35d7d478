"""Conclusions that rest on unstable times say so."""

import msgspec
import pytest

from peakward.records.case import Source, TextData
from peakward.records.measurement import Protocol, Validity
from peakward.studies.cases import model_case, with_work
from peakward.studies.claims import Sentence
from peakward.studies.doubts import MOST_NAMED, marked, notes
from peakward.studies.scope import micro

from .conftest import case_profile

STEADY = Protocol()
SHAKY = Validity(verdict="unstable", reasons=("coefficient of variation 12% > 5%",))


@pytest.fixture
def made(measure, setting):
    def make(serial, protocol=STEADY, validity=SHAKY):
        case = model_case(micro(), 2, 64 + serial, "forward", "cuda")
        found = measure(case, protocol, setting().environment, serial=serial)
        return msgspec.structs.replace(found, validity=validity)

    return make


def one(unit, *measurements):
    told = Sentence()
    said = told.end(f"It is {told('x', 2.0, unit, *measurements)}.")
    return marked(said, measurements)[0]


def test_a_time_that_is_unstable_is_counted(made):
    said = one("ratio", made(1), made(2, validity=Validity(verdict="stable")))
    assert said.text == "It is 2.00×. (1 of the 2 times behind it is unstable or throttled.)"
    assert [(each.quantity, each.value) for each in said.evidence[1:]] == [
        ("doubtful times", 1),
        ("times", 2),
    ]
    assert said.evidence[1].from_ids == ("m1",)


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (1, "The time behind it is unstable or throttled."),
        (3, "All 3 times behind it are unstable or throttled."),
    ],
)
def test_where_every_time_is_unstable(made, n, said):
    assert one("s", *(made(serial) for serial in range(n))).text == f"It is 2.00 s. ({said})"


def test_stable_times_are_not_remarked_on(made):
    assert one("s", made(1, validity=Validity(verdict="stable"))).text == "It is 2.00 s."


def test_a_share_read_off_a_profile_is_as_doubtful_as_its_case(made):
    shaky, steady = made(1), made(2, validity=Validity(verdict="stable"))
    for measurement, n_marked in ((shaky, 1), (steady, 0)):
        profile = case_profile(measurement.case)
        told = Sentence()
        said = told.end(f"It takes {told('x', 0.5, 'share', profile)}.")
        (found,) = marked(said, [shaky, steady], [profile])
        assert found.text.count("unstable") == n_marked
    assert one("share", shaky).text == "It is 200%.", "a share of something else"


def test_memory_does_not_depend_on_steady_times(made):
    assert one("bytes", made(1)).text == "It is 2.00 B."


@pytest.mark.parametrize("protocol", [Protocol(warmup_steps=0), Protocol(max_steps=1)])
def test_a_cold_start_and_a_probe_are_meant_to_be_unsteady(made, protocol):
    assert one("ratio", made(1, protocol)).text == "It is 2.00×."
    assert notes([made(1, protocol)]) == ()


def test_the_notes_name_the_first_with_their_reasons(made):
    told = notes([made(i) for i in range(MOST_NAMED + 2)])
    assert told[0].startswith(f"{MOST_NAMED + 2} of {MOST_NAMED + 2} times are unstable")
    assert len(told) == 1 + MOST_NAMED
    assert "coefficient of variation 12% > 5%" in told[1]


def test_changing_lengths_are_meant_to_be_unsteady(made):
    found = made(1)
    case = with_work(found.case, varying_seq_lens=(64, 32))
    changing = msgspec.structs.replace(found, case=case)
    padded = msgspec.structs.replace(found, case=with_work(case, padding="to-seq-len"))
    assert one("ratio", changing).text == "It is 2.00×."
    assert "unstable" in one("ratio", padded).text


def test_steps_that_wait_for_a_loader_are_meant_to_be_unsteady(made):
    found = made(1)
    case = with_work(found.case, data=TextData(text=Source("python-topics")))
    assert one("ratio", msgspec.structs.replace(found, case=case)).text == "It is 2.00×."
