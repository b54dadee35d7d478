"""What `compile` concludes."""

import pytest

from peakward.studies import compile as compile_study


@pytest.fixture
def said(setting, gathered):
    def make(**options):
        here = setting()
        return compile_study.parts(gathered(compile_study, here, **options), here).conclusions

    return make


def test_each_mode_is_held_against_its_base(said):
    texts = [each.text for each in said() if "in speed" in each.text]
    assert texts[0] == (
        "compile default over fp32 eager, in speed: "
        "attention 2.00× (1.97× to 2.03×; small) to 2.00× (1.97× to 2.03×; 2.7B); "
        "forward 2.00× (1.97× to 2.03×; small) to 2.00× (1.97× to 2.03×; 2.7B); "
        "train_step 2.00× (1.97× to 2.03×; small) to 2.00× (1.97× to 2.03×; 2.7B)."
    )
    assert any(text.startswith("tf32 eager over fp32 eager") and "4.00×" in text for text in texts)
    assert any(text.startswith("tf32 compile default over tf32 eager") for text in texts)
    assert len(texts) == 5


def test_the_payback_by_size(said, figures):
    told = next(each for each in said() if each.text.startswith("compile default pays back"))
    assert figures(told)["compile time, small"] == 30.0
    assert figures(told)["steps, 2.7B"] < figures(told)["steps, small"]


def test_breaks_and_recompilations_are_counted(said, figures):
    told = next(each for each in said() if "graph breaks" in each.text)
    assert figures(told) == {"compiled cases": 15, "graph breaks": 15, "recompilations": 0}


def test_padding_against_changing_lengths_for_each_engine(said, figures):
    told = [each for each in said() if "padding to one length" in each.text]
    assert [each.text.split(",")[0] for each in told] == [
        "Under eager",
        "Under compile default",
        "Under cuda-graphs",
    ]
    assert figures(told[0])["padded over changing"] == pytest.approx(1.0)


def test_without_eager_no_gain_and_no_payback(said):
    def no_eager(case):
        return "oom" if getattr(case, "configuration", case).compile == "none" else None

    texts = [each.text for each in said(overrule=no_eager)]
    assert not any("in speed" in text or "pays back" in text for text in texts)
    assert any("graph breaks" in text for text in texts)


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()
