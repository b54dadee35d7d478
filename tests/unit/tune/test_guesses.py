"""Guessed tokens on the best composition of a decode run."""

from types import SimpleNamespace

import msgspec
import pytest

from peakward.levers.catalogue import with_settings
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import OutOfTimeError
from peakward.records.measurement import Protocol
from peakward.report.run import document
from peakward.tune.costs import Costs
from peakward.tune.guesses import N_NEW_TOKENS, N_PROMPTS, Guessed, conclusion, entered, guessed


class Device:
    """Bench, ledger, workers and sweep in one."""

    costs = Costs(start_s=1.0, arm_s=1.0, compile_s=0.0)

    def __init__(self, *, affords=True, ends=False, interrupted=False):
        self.ledger = self.workers = self
        self._affords, self._ends, self.interrupted = affords, ends, interrupted
        self.measured, self.costs_s, self.skipped = [], [], []

    def affords(self, cost_s, what):
        self.costs_s.append(cost_s)
        return self._affords

    def skip(self, undone):
        self.skipped.append(undone.what)

    def close(self): ...

    def measure(self, case, protocol):
        if self._ends:
            raise OutOfTimeError("the budget ended")
        self.measured.append(case)
        return SimpleNamespace(case=case, interrupted=self.interrupted, status="ok")


def best(settings, *, batch_size=1, pass_="decode", step_s=0.01, device="cuda"):
    case = ModelCase(
        model=model("small"),
        workload=Workload(batch_size=batch_size, seq_len=128, pass_=pass_),
        configuration=with_settings(Configuration(), settings),
        device=device,
    )
    interval = SimpleNamespace(estimate=step_s)
    summary = None if step_s is None else SimpleNamespace(median_s=interval)
    return SimpleNamespace(case=case, summary=summary, loader=None)


def tried(measured, where, real_model="smollm2"):
    return guessed(real_model, measured, where, where, Protocol())


FUSED = {
    "precision": "bf16",
    "attention": "flash-decode",
    "cuda_graphs": True,
    "decode_step": "fused",
}


def test_texts_are_made_as_the_best_has_its_steps():
    where = Device()
    found = tried(best(FUSED), where)
    (case,) = where.measured
    assert (case.precision, case.kv_cache, case.decode_step) == ("bf16", "static", "fused")
    assert (case.model, case.draft, case.guesses, case.device) == ("smollm2", "ngrams", 4, "cuda")
    assert found.notes == ()
    # With guesses and without, and a text before, of each.
    assert where.costs_s == [1.0 + 2 * (N_PROMPTS + 1) * N_NEW_TOKENS * 0.01]


def test_texts_have_the_weights_of_the_best():
    where = Device()
    tried(best({"precision": "bf16", "weights": "int8"}, device="cpu"), where)
    (case,) = where.measured
    assert (case.precision, case.weights, case.decode_step) == ("bf16", "int8", "separate")


def test_what_a_generation_has_no_option_for_is_named_and_left_out():
    where = Device()
    found = tried(best({"compile": "default", "precision": "bf16-mixed"}, device="cpu"), where)
    (case,) = where.measured
    assert case.precision is None
    (note,) = found.notes
    assert note == (
        "The texts with guesses were made without these settings of the best, for which peakward generate "
        "has no option: precision bf16-mixed, compile default."
    )


@pytest.mark.parametrize(
    ("settings", "others", "said"),
    [
        (FUSED, {"batch_size": 4}, "for one text at a time, got a batch of 4: give --batch-size 1"),
        (FUSED | {"weights": "int8"}, {}, "dense weights beside guesses"),
        ({"kv_cache": "none"}, {}, "they need a cache of keys and values, got kv-cache none"),
        (FUSED | {"kv_cache": "int8"}, {}, "in the compute type beside guesses"),
    ],
)
def test_what_stands_in_the_way_is_said(settings, others, said):
    where = Device()
    found = tried(best(settings, **others), where)
    assert said in found.notes[0]
    assert found.notes[0].startswith("Guesses (speculative decoding) were not tried: ")
    assert not where.costs_s


def test_random_weights_have_no_right_guesses():
    assert "give --real-model" in tried(best(FUSED), Device(), real_model=None).notes[0]


@pytest.mark.parametrize("without", [{"pass_": "prefill"}, {"step_s": None}], ids=str)
def test_other_passes_and_a_best_without_a_time_have_none(without):
    assert tried(best(FUSED, **without), Device()) == Guessed()


def test_a_budget_that_ends_is_told():
    assert tried(best(FUSED), Device(affords=False)) == Guessed()
    where = Device(ends=True)
    assert tried(best(FUSED), where) == Guessed()
    assert where.skipped == ["guessing tokens of smollm2"]


def test_ctrl_c_is_handed_on():
    with pytest.raises(KeyboardInterrupt):
        tried(best(FUSED), Device(interrupted=True))


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.5, "at 1.50× (1.50–1.50×) the speed of the same without guesses: guessing pays."),
        (0.5, "at 0.500× (0.500–0.500×) the speed of the same without guesses: guessing loses."),
    ],
)
def test_whether_it_pays_is_told_with_an_interval(factor, said, studies):
    told = conclusion(studies.guesses(factor))
    assert said in told.text
    assert told.text.endswith(
        "smollm2 accepts 39.0% of the judged guesses, and 12 of 12 texts are token for token the same."
    )
    assert {each.from_ids for each in told.evidence} == {("guesses",)}


def test_times_that_differ_by_chance_are_not_told_apart(studies):
    made = studies.guesses(1.0)
    plain_s = tuple(each * (1.1 if n % 2 else 0.9) for n, each in enumerate(made.runs[0].steps_s))
    found = msgspec.structs.replace(made.speculated, plain_s=plain_s)
    assert (
        "no difference is shown" in conclusion(msgspec.structs.replace(made, speculated=found)).text
    )


def test_a_case_that_failed_has_a_row_and_no_sentence(studies):
    failed = msgspec.structs.replace(
        studies.guesses(1.5), status="oom", reason="needs more", speculated=None
    )
    study = entered(studies.run_study(), Guessed((failed,)))
    assert study.measurements[-1] == failed
    (row,) = study.tables[-1].rows
    assert row[-2:] == ("oom", "needs more")
    assert conclusion(failed) is None


def test_a_report_has_a_section_of_them(studies):
    study = entered(studies.run_study(), Guessed((studies.guesses(1.5),)))
    (section,) = [each for each in document(study).sections if each.title == "Guessed tokens"]
    table, said = section.blocks
    assert table.table.rows[0][:4] == ("ngrams", 4, pytest.approx(300 / 770), 12 * 63 / 480)
    assert "guessing pays" in said.texts[0]
    assert not [each for each in document(studies.run_study()).sections if each == section]
