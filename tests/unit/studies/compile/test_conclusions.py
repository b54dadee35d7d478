"""What `compile` concludes."""

import msgspec
import pytest

from peakward.records.measurement import Run
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


def test_what_each_way_takes_to_start_stands_beside_its_rate(setting, gathered, figures):
    here = setting()
    readings = gathered(compile_study, here)
    for each in tuple(readings):
        work = getattr(each.case, "workload", None)
        if each.compile is None or work is None or not work.varying_seq_lens:
            continue
        padded = work.padding != "none"
        # As on an H200: 20 s and 4 graphs with changing lengths, 10 s and 2 with padding.
        step_s, start_s = (0.044, 10.0) if padded else (0.027, 20.0)
        n_warmup, n_steps = each.protocol.warmup_steps, each.protocol.min_steps
        run = Run(
            warmup_s=(start_s + step_s, *(step_s,) * (n_warmup - 1)), steps_s=(step_s,) * n_steps
        )
        counts = {"n_graphs": 2} if padded else {"n_graphs": 4, "n_recompiles": 2}
        readings.add(
            msgspec.structs.replace(
                each,
                runs=(run,),
                summary=msgspec.structs.replace(each.summary, mean_s=step_s),
                compile=msgspec.structs.replace(each.compile, **counts),
            )
        )
    said = compile_study.parts(readings, here).conclusions
    (starts,) = [
        each for each in said if each.text.startswith("Under compile default a fresh process")
    ]
    assert starts.text == (
        "Under compile default a fresh process takes 20.0 s with changing lengths (4 graphs compiled, 2 of "
        "them anew for another length) and 10.0 s with padded lengths (2 graphs compiled) to start; the "
        "longer start, with changing lengths, is made up for after 589 steps."
    )
    (paid,) = [
        each for each in said if "Beside eager" in each.text and "compile default" in each.text
    ]
    told = figures(paid)
    assert told["start beyond eager's, changing"] == pytest.approx(20.0)
    assert not any("eager a fresh process" in each.text for each in said), "eager compiles nothing"


def test_graphs_from_the_disk_cache_are_said_to_be(setting, gathered):
    here = setting()
    readings = gathered(compile_study, here)
    for each in tuple(readings):
        if each.compile is not None:
            cached = msgspec.structs.replace(each.compile, n_cached_graphs=1)
            readings.add(msgspec.structs.replace(each, compile=cached))
    said = compile_study.parts(readings, here).conclusions
    assert any("1 taken from the compiler's disk cache" in each.text for each in said)


def test_where_one_way_failed_the_other_is_still_held_against_eager(said):
    def no_padding(case):
        work = getattr(case, "workload", None)
        return "timeout" if work is not None and work.padding != "none" else None

    texts = [each.text for each in said(overrule=no_padding)]
    assert not any("padding to one length" in text or "a fresh process" in text for text in texts)
    (told,) = [text for text in texts if "Beside eager" in text and "compile default" in text]
    assert "with changing lengths" in told and "padded" not in told


def test_without_eager_no_gain_and_no_payback(said):
    def no_eager(case):
        return "oom" if getattr(case, "configuration", case).compile == "none" else None

    texts = [each.text for each in said(overrule=no_eager)]
    assert not any("in speed" in text or "pays back" in text for text in texts)
    assert any("graph breaks" in text for text in texts)


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()
