"""What `precision` plans, tables and concludes, from a formula's times and figures made by hand."""

import msgspec
import pytest

from peakward.records.case import MicroCase, ModelCase
from peakward.studies import precision
from peakward.studies.precision import STUDY
from peakward.studies.recorder import Recorder

from .conftest import RATE


@pytest.fixture
def made(setting, lab):
    def make(device="cuda", scope="corners", **options):
        here = setting(scope, device)
        recorder = Recorder(lab(here, **options))
        STUDY.gather(recorder, here)
        return STUDY.parts(recorder.readings, here)

    return make


def test_every_pass_has_every_precision_and_its_speed(made, rows):
    lines = rows(made().tables[0])
    assert len(lines) == 2 * 3 * 6
    assert {each["precision"] for each in lines} == set(precision.PRECISIONS)
    for each in lines:
        if each["precision"] == precision.BASE:
            assert each[f"speed over {precision.BASE} (95% interval)"] is None
            continue
        assert each[f"speed over {precision.BASE} (95% interval)"].startswith(
            f"{RATE[each['precision']] / RATE['fp32']:.2f}×"
        )


def test_a_cpu_says_what_it_has_not(made, rows):
    lines = rows(made("cpu", "small").tables[0])
    absent = {each["precision"]: each["reason"] for each in lines if each["status"] != "ok"}
    assert {"tf32", "fp16-mixed", "fp8"} == absent.keys()
    assert all(absent.values())


def test_sentences_of_speed_copies_and_drift(made, figures):
    said = made().conclusions
    (gain,) = [each for each in said if each.text.startswith("bf16 train_step runs at")]
    assert figures(gain)["largest speed-up"] == pytest.approx(8)
    (drift, _) = [each for each in said if "of the gradients of" in each.text]
    assert "furthest is fp8" in drift.text
    assert figures(drift)["over fp32"] == pytest.approx(5e5)
    assert figures(drift)["of its bound"] == pytest.approx(0.5)
    shares = [each for each in said if each.text.startswith("Of the work")]
    # The fake profile has no kernels that copy.
    assert {figures(each)["copies, bf16"] for each in shares} == {0}


def test_of_nothing_nothing_is_said(made):
    assert made(overrule=lambda case: "crashed").conclusions == ()


def test_scores_are_alone(setting):
    here = setting("corners")
    scores = [each.case for each in STUDY.points(here) if isinstance(each.case, MicroCase)]
    assert {each.piece for each in scores} == {"fp32", "tf32", "bf16", "fp16"}
    steps = [each for each in STUDY.points(here) if isinstance(each.case, ModelCase)]
    assert {each.also for each in steps if each.case.workload.pass_ == "train_step"} == {"profile"}


def test_scores_in_tf32_need_the_tensor_cores(setting):
    here = setting("corners")
    old = msgspec.structs.replace(here.environment, compute_capability="7.5")
    points = STUDY.points(msgspec.structs.replace(here, environment=old))
    absent = {each.name: each.absent for each in points if isinstance(each.case, MicroCase)}
    assert "8.0" in absent.pop("tf32")
    assert set(absent.values()) == {None}
