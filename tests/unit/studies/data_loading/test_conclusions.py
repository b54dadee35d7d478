"""What `data-loading` concludes from known figures."""

import re

from peakward.studies.scope import Scope


def said(made, *arguments, **options):
    return [each.text for each in made(*arguments, **options).conclusions]


def test_the_bottleneck_is_told_by_the_wait(made):
    texts = said(made)
    (told,) = [each for each in texts if "on the fly, 0 loader workers" in each]
    # At every size the same: whichever comes first is named.
    assert re.sub(r"\(.*\)", "(WHERE)", told) == (
        "python-topics by bytes on the fly, 0 loader workers: the device waits 31.2% of a step for data "
        "(WHERE), at least 31.2%; the loader is the bottleneck, above 5.00%, in 4 of 4, and steps take "
        "up to 1.60× their time on resident tokens."
    )
    assert any("on the fly, 8 loader workers" in each and "in 0 of 4" in each for each in texts)


def test_workers_gain_where_the_step_tokenised(made):
    texts = said(made)
    # 1.6 over 1.12 with pageable copies, 1.5 over 1.02 with copies that let the host go on.
    assert (
        "With 8 loader workers (python-topics by bytes on the fly) steps run at 1.45× the speed that "
        "they have with none (by case 1.43× to 1.47×); of 8 cases 8 are faster and 0 slower, their "
        "intervals apart."
    ) in texts
    assert (
        "With 8 loader workers (python-topics by bytes cached) steps run at 1.00× the speed that "
        "they have with none (by case 1.00× to 1.00×); of 8 cases 0 are faster and 0 slower, their "
        "intervals apart."
    ) in texts


def test_copies_are_compared_where_a_gpu_takes_them(made):
    assert any(each.startswith("With pinned, non-blocking copies") for each in said(made))
    assert not any("copies" in each for each in said(made, "cpu", "small"))
    alone = [each for each in said(made, scope="full") if each.startswith("With pinned copies")]
    assert len(alone) == 1 and "0 are faster and 0 slower" in alone[0]


def test_one_pair_has_no_range(made):
    texts = said(made, "cpu", "small")
    assert (
        "With 2 loader workers (python-topics by bytes on the fly) steps run at 1.43× the speed that they "
        "have with none, their intervals apart."
    ) in texts
    assert (
        "With the quickest of the loaders (python-topics by bytes on the fly) steps run at 0.893× the "
        "speed that they have with resident tokens, their intervals apart."
    ) in texts


def test_one_worker_is_one(made):
    texts = said(made, "cpu", Scope("small", workers=(1,)))
    assert texts[0] == (
        "python-topics by bytes cached, 1 loader worker: the device waits 1.79% of a step for data "
        "(micro 2 × 64 train_step); the loader is the bottleneck, above 5.00%, in 0 of 1, and steps take "
        "1.12× their time on resident tokens."
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
