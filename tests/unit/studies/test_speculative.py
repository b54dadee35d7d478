"""What `speculative` predicts and concludes from known counts and times."""

import re

import msgspec
import pytest

from peakward.records.case import SpeculationCase
from peakward.studies.engine import view
from peakward.studies.speculative import (
    ABSENT,
    STUDY,
    acceptance,
    measured,
    over_predicted,
    points,
    predicted,
    tokens_per_pass,
)


@pytest.fixture
def here(setting):
    return setting("small", "cpu")


def test_figures_of_a_round(here, gathered):
    found = {
        (row.name, row.case.guesses): row
        for row in view(points(here), gathered(STUDY, here), here).rows
    }
    row = found["ngrams", 2]
    assert tokens_per_pass(row) == pytest.approx(3 * 23 / (3 * 23 // 2))
    # Half of the rounds accept two of two, and half refuse the first: 2 of 3 that were judged.
    assert acceptance(row) == pytest.approx(2 / 3, rel=0.02)
    assert predicted(row) == pytest.approx(tokens_per_pass(row) / 1.1)
    assert measured(row).estimate == pytest.approx(1.5, rel=0.01)
    assert measured(row).low < 1.5 < measured(row).high
    assert over_predicted(row) == pytest.approx(measured(row).estimate / predicted(row))
    drafted = found["skip:12-17", 4]
    assert predicted(drafted) == pytest.approx(tokens_per_pass(drafted) / (1.1 + 4 * 0.5))


def test_what_pays_and_what_loses_is_said(here, gathered):
    said = [each.text for each in STUDY.parts(gathered(STUDY, here), here).conclusions]
    assert any(
        "guessed by ngrams the speed is 1.5" in each and "Guessing pays." in each for each in said
    )
    assert any("skip:12-17 the speed is 0.5" in each and "guessing loses." in each for each in said)
    lost, _ = [each for each in said if "loses, by the tokens of a round" in each]
    assert lost.startswith("Guessing by skip:12-17 loses, by the tokens of a round: 0.50")
    assert all(
        re.fullmatch(r"0\.\d+× \(0\.\d+× to 0\.\d+×\) with \d", each)
        for each in lost.partition("round: ")[2].partition(", of the")[0].split(", ")
    )
    assert lost.endswith(" with 4, of the speed without guesses.")
    assert "18 of 18 greedy texts with guesses are token for token those without." in said


def test_what_a_matrix_wins_back_is_told_of_the_most_guesses(here, gathered):
    said = [each.text for each in STUDY.parts(gathered(STUDY, here), here).conclusions]
    (found,) = [each for each in said if each.startswith("With one fitted matrix")]
    # Of 23 rounds 15 accept all four, for 11: 60 of 68 that were judged, and 44 of 56.
    assert found == (
        "With one fitted matrix in the place of blocks 12-17 the model accepts 88.2% of the tokens (of 4 "
        "tokens guessed by distilled:12-17), for 78.6% without it."
    )


def test_without_the_model_nothing_is_run(setting):
    bare = msgspec.structs.replace(setting("small", "cpu"), has_smollm2=False)
    assert {point.absent for point in points(bare)} == {ABSENT}
    assert STUDY.plan(bare) == ()


def test_what_failed_is_not_told(here, gathered):
    failed = STUDY.parts(gathered(STUDY, here, overrule=lambda _case: "oom"), here)
    assert failed.conclusions == ()
    assert len(failed.tables[0].rows) == 6


def test_a_gpu_tries_more(here):
    assert all(isinstance(point.case, SpeculationCase) for point in points(here))
    scope = msgspec.structs.replace(here.scope, name="full")
    every = list(points(msgspec.structs.replace(here, scope=scope)))
    assert {point.case.temperature for point in every} == {0.0, 1.0}
    assert max(point.case.guesses for point in every) == 7
