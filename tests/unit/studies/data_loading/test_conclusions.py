"""What `data-loading` concludes from known figures."""

import re

import pytest

from peakward.records.case import Source, TextData
from peakward.studies import data_loading
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope


def said(made, *arguments, **options):
    return [each.text for each in made(*arguments, **options).conclusions]


def test_the_bottleneck_is_told_by_the_wait(made):
    texts = said(made)
    (told,) = [each for each in texts if "on the fly, 0 loader workers" in each]
    # At every size the same: whichever comes first is named.
    assert re.sub(r"\(.*?\)", "(WHERE)", told, count=1) == (
        "python-topics by bytes on the fly, 0 loader workers: the device waits 31.2% of a step for data "
        "(WHERE), at least 31.2%; the loader is the bottleneck, above 5.00%, in 4 of 4, and steps take "
        "up to 1.60× their time on resident tokens (1.60× to 1.60× over 3 turns)."
    )
    assert any("on the fly, 8 loader workers" in each and "in 0 of 4" in each for each in texts)


def test_workers_gain_where_the_step_tokenised(made):
    texts = said(made)
    # 1.6 over 1.12 with pageable copies, 1.5 over 1.02 with copies that let the host go on.
    assert (
        "With 8 loader workers (python-topics by bytes on the fly) steps run at 1.45× the speed that "
        "they have with none (by case 1.43× to 1.47×); of 8 cases 8 are faster, 0 slower and 0 not "
        "told apart, by intervals over 3 turns."
    ) in texts
    assert (
        "With 8 loader workers (python-topics by bytes cached) steps run at 1.00× the speed that "
        "they have with none (by case 1.00× to 1.00×); of 8 cases 0 are faster, 0 slower and 8 not "
        "told apart, by intervals over 3 turns."
    ) in texts


def test_copies_are_compared_where_a_gpu_takes_them(made):
    assert any(each.startswith("With pinned, non-blocking copies") for each in said(made))
    assert not any("copies" in each for each in said(made, "cpu", "small"))
    alone = [each for each in said(made, scope="full") if each.startswith("With pinned copies")]
    assert len(alone) == 1 and "0 are faster, 0 slower and 160 not told apart" in alone[0]


def test_one_pair_has_no_range(made):
    texts = said(made, "cpu", "small")
    assert (
        "With 2 loader workers (python-topics by bytes on the fly) steps run at 1.43× the speed that they "
        "have with none (1.43× to 1.43× over 3 turns)."
    ) in texts
    assert (
        "With the quickest of the loaders (python-topics by bytes on the fly) steps run at 0.893× the "
        "speed that they have with resident tokens (0.893× to 0.893× over 3 turns)."
    ) in texts


def test_one_worker_is_one(made):
    texts = said(made, "cpu", Scope("small", workers=(1,)))
    assert texts[0] == (
        "python-topics by bytes cached, 1 loader worker: the device waits 1.79% of a step for data "
        "(micro 2 × 64 train_step); the loader is the bottleneck, above 5.00%, in 0 of 1, and steps take "
        "1.12× their time on resident tokens (1.12× to 1.12× over 3 turns)."
    )


def test_what_one_process_makes_is_held_against_the_step(made):
    texts = said(made, "cpu", "small")
    (told,) = [each for each in texts if "on the fly: one process makes" in each]
    assert told.endswith("cost it 0.500× of what that step takes on resident tokens.")


def test_samplers(made):
    assert said(made)[-2:] == [
        "Of 4 ranks with a sampler for each, rank 0 reads 250 of 1,000 sequences in an epoch, of which "
        "another reads 0 too.",
        "Of 4 ranks without one, rank 0 reads 1,000 of 1,000 sequences in an epoch, of which another "
        "reads 1,000 too.",
    ]


def test_of_fed_steps_without_a_resident_one_the_wait_is_told(made):
    texts = said(made, overrule=lambda case: None if case.workload.data else "crashed")
    assert any("the device waits" in each for each in texts)
    assert not any("resident" in each for each in texts)


@pytest.fixture
def noisy(setting, gathered, measure):
    """The texts of a CPU's grid in which measured steps take a factor of their time, by case."""

    def make(factor, kept=lambda case: True):
        here = setting("small", "cpu")
        readings = gathered(data_loading, here)
        told = Readings(
            measure(each.case, each.protocol, here.environment, "ok", serial, factor(each.case))
            for serial, each in enumerate(readings)
            if kept(each.case)
        )
        return [each.text for each in data_loading.parts(told, here).conclusions]

    return make


def test_a_ratio_whose_interval_holds_one_is_not_told_apart(noisy):
    """Turns that differ by as much as the loader costs, fed and resident not alike."""

    def factor(case):
        turn = case.workload.seed
        return (1.3, 0.7, 1.0)[turn] if case.workload.data is None else 1.0

    texts = noisy(factor)
    (told,) = [each for each in texts if "cached, 2 loader workers" in each]
    assert told.endswith(" over 3 turns: not told apart).")
    (best,) = [
        each for each in texts if "quickest of the loaders (python-topics by bytes cached" in each
    ]
    assert best.endswith(" over 3 turns), not told apart.")


def test_what_slows_a_whole_turn_is_not_in_the_ratio(noisy):
    texts = noisy(lambda case: 1 + case.workload.seed)
    (told,) = [each for each in texts if "cached, 2 loader workers" in each]
    assert told.endswith("(1.12× to 1.12× over 3 turns).")


def test_fed_steps_faster_than_resident_ones_are_called_noise(noisy):
    texts = noisy(lambda case: 1.0 if case.workload.data else 1.5)
    assert texts[-3].startswith(
        "In 3 of 4 cases fed steps come out faster than resident ones, in one at 0.747× of their time "
    )
    assert not any("noise" in each for each in noisy(lambda case: 1.0))


def test_of_one_turn_the_sentence_says_that_it_is_of_one_process(noisy):
    texts = noisy(lambda case: 1.0, kept=lambda case: case.workload.seed == 0)
    (told,) = [each for each in texts if "on the fly, 0 loader workers" in each]
    assert told.endswith("(1.60× to 1.60× within one process of each).")


def test_the_quickest_names_the_loaders_that_were_not_timed(made):
    texts = said(
        made, overrule=lambda case: "oom" if (case.workload.data or _NONE).n_workers else None
    )
    quickest = [each for each in texts if "quickest of the loaders" in each]
    assert quickest and all("quickest of the loaders timed" in each for each in quickest)
    assert all(
        each.endswith(
            "; not timed: 8 loader workers with pageable copies, 8 loader workers with pinned "
            "non-blocking copies (out of memory)."
        )
        for each in quickest
    )


_NONE = TextData(text=Source("none"))
