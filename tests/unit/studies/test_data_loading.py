"""What `data-loading` plans, tables and concludes from known figures."""

import msgspec
import pytest

from peakward.levers.catalogue import case_obstacle
from peakward.records.case import Source, TextData
from peakward.studies.cases import with_work
from peakward.studies.data_loading import STUDY, WARMUP_STEPS, tokenizer
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope, micro

NONE = TextData(text=Source("none"))


@pytest.fixture
def made(setting, gathered):
    def make(device="cuda", scope="corners", **options):
        here = setting(scope, device)
        return STUDY.parts(gathered(STUDY, here, **options), here)

    return make


@pytest.fixture
def said(made):
    return lambda *arguments, **options: [
        each.text for each in made(*arguments, **options).conclusions
    ]


@pytest.fixture
def noisy(setting, gathered, measure):
    """The texts of a CPU's grid in which measured steps take a factor of their time, by case."""

    def make(factor, kept=lambda case: True):
        here = setting("small", "cpu")
        told = Readings(
            measure(each.case, each.protocol, here.environment, "ok", serial, factor(each.case))
            for serial, each in enumerate(gathered(STUDY, here))
            if kept(each.case)
        )
        return [each.text for each in STUDY.parts(told, here).conclusions]

    return make


@pytest.mark.parametrize(
    ("scope", "device", "n"),
    [
        ("small", "cpu", 3 * (1 + 2 * 2) + 2),
        ("corners", "cuda", 3 * 4 * (1 + 2 * 2 * 2) + 2),
        ("full", "cuda", 3 * 20 * (1 + 2 * 3 * 4) + 2),
    ],
)
def test_every_case_can_run_and_starts_behind_what_workers_made_ahead(setting, scope, device, n):
    plan = STUDY.plan(setting(scope, device))
    assert len(plan) == n == len(set(plan))
    for case, protocol in plan:
        assert case_obstacle(case, compute_capability=(9, 0), has_compiler=True) is None
        assert protocol.warmup_steps == WARMUP_STEPS > 2 * (case.workload.data or NONE).n_workers


def test_turns_go_through_the_grid_forwards_and_backwards(setting):
    cases = [case for case, _ in STUDY.plan(setting())]
    assert {with_work(case, data=None) for case in cases} <= set(cases)
    turns = [cases[36 * turn : 36 * (turn + 1)] for turn in range(3)]
    assert [{case.workload.seed for case in turn} for turn in turns] == [{0}, {1}, {2}]
    first, second, third = ([with_work(case, seed=0) for case in turn] for turn in turns)
    assert first == second[::-1] == third


def test_what_the_user_asks_for_is_taken(setting):
    chosen = {"text": Source("kjv"), "tokenizer": Source("/t.json", "1")}
    scope = Scope("small", workers=(1, 3), seq_lens=(32,), **chosen)
    fed = [case.workload for case, _ in STUDY.plan(setting(scope, "cpu"))]
    data = [work.data for work in fed if work.data is not None]
    assert {each.text for each in data} == {chosen["text"]}
    assert {each.tokenizer for each in data} == {chosen["tokenizer"]}
    assert {each.n_workers for each in data if each.n_ranks == 1} == {1, 3}
    assert {work.seq_len for work in fed} == {32}


def test_byte_pairs_are_taken_where_their_package_is_and_the_want_of_it_is_said(setting):
    bare = setting("small", "cpu")
    full = msgspec.structs.replace(bare, has_tokenizers=True)
    chosen = setting(Scope("small", tokenizer=Source("bytes")), "cpu")
    assert [tokenizer(each).name for each in (bare, full, chosen)] == ["bytes", "bpe", "bytes"]
    advised = [
        "pip install" in " ".join(STUDY.parts(Readings(), each).notes)
        for each in (bare, full, chosen)
    ]
    assert advised == [True, False, False]


def test_each_fed_step_stands_against_its_resident_one(made, rows):
    resident, fed, texts, samplers = (rows(each) for each in made().tables)
    assert (len(resident), len(fed)) == (4, 32)
    row = next(
        row
        for row in fed
        if (row["text"], row["workers"]) == ("python-topics by bytes on the fly", 0)
    )
    assert (row["workload"], row["copies"], row["turns"]) == ("4 × 128 train_step", "pageable", 3)
    # Half of the step's own time is waited for data, a tenth copied.
    assert row["over resident"] == pytest.approx(1.6)
    assert row["waiting, of the step"] == pytest.approx(0.3125)
    assert row["GPU idle"] == row["host waits"]
    assert row["host copies"] == pytest.approx(row["host waits"] / 5)
    # Text × size × length × workers: of several ways to the device one row.
    assert len(texts) == 2 * 4 * 2
    assert [row["also read by another"] for row in samplers] == [0, 1000]


def test_a_cpu_has_no_idle_gpu_and_no_pinned_memory(made, rows):
    found = made("cpu", "small")
    assert {row["GPU idle"] for row in rows(found.tables[1])} == {None}
    assert not any("copies" in each.text for each in found.conclusions)
    assert any("Not run: pinned memory" in each for each in found.notes)


def test_the_plot_has_a_line_a_model_and_way(made):
    plot, longer = made().plots
    assert plot.title == "Waiting for data, sequence 128"
    assert longer.title == "Waiting for data, sequence 1024"
    assert len(plot.series) == 2 * 2 * 2
    assert all([point.x for point in each.points] == [0, 8] for each in plot.series)


def test_failed_cases_keep_their_rows_and_have_no_figures(made, rows):
    found = made(overrule=lambda case: "oom" if case.workload.data else None)
    for row in rows(found.tables[1]):
        assert (row["status"], row["mean step"], row["over resident"]) == ("oom", None, None)
    assert found.tables[2].rows == ()
    assert found.conclusions == ()


def test_the_wait_and_the_bottleneck_are_told(said):
    texts = said()
    slow = "0 loader workers from python-topics by bytes on the fly"
    (wait,) = [each for each in texts if each.startswith(f"With {slow} a step waits")]
    assert wait == (f"With {slow} a step waits 31.2% of its time for data in each of 4 cases.")
    (gain,) = [each for each in texts if each.startswith(f"Feeding by {slow} runs")]
    assert gain.startswith(
        f"Feeding by {slow} runs at 0.625× the speed of resident tokens at least"
    )
    assert (
        "The loader is the bottleneck, with waits of more than 5.00% of a step, in 8 of 32 cases: "
        f"{slow}."
    ) in texts


def test_one_worker_is_one(said):
    texts = said("cpu", Scope("small", workers=(1,)))
    assert texts[:2] == [
        "With 1 loader worker from python-topics by bytes cached a step waits 1.79% of its time for data "
        "(micro 2 × 64 train_step).",
        "Feeding by 1 loader worker from python-topics by bytes cached runs micro 2 × 64 train_step at "
        "0.893× the speed of resident tokens (0.893× to 0.893× over 3 turns).",
    ]
    assert any(each.endswith("in 0 of 2 cases: with none.") for each in texts)


def test_what_one_process_makes_is_held_against_the_step(said):
    (told,) = [each for each in said("cpu", "small") if "on the fly makes a step's tokens" in each]
    assert "makes a step's tokens in 0.500× of the time of the step on resident tokens" in told


def test_workers_gain_where_the_step_tokenised(said):
    texts = said()
    # 1.6 over 1.12 with pageable copies, 1.5 over 1.02 with copies that let the host go on.
    (told,) = [
        each
        for each in texts
        if "8 loader workers from python-topics by bytes on the fly runs" in each
        and "of feeding by none" in each
    ]
    assert "runs at 1.43× the speed of feeding by none at least" in told and "1.47× at most" in told
    assert told.endswith(
        "Of 8 cases 8 are faster, 0 slower and 0 not told apart, by intervals over 3 turns."
    )
    (told,) = [
        each
        for each in texts
        if "8 loader workers from python-topics by bytes cached runs" in each
        and "of feeding by none" in each
    ]
    assert "Of 8 cases 0 are faster, 0 slower and 8 not told apart" in told
    assert (
        "Feeding by 2 loader workers from python-topics by bytes on the fly runs micro 2 × 64 train_step at "
        "1.43× the speed of feeding by none (1.43× to 1.43× over 3 turns)."
    ) in said("cpu", "small")


def test_copies_are_compared_where_a_gpu_takes_them(said):
    assert any(each.startswith("Feeding by pinned, non-blocking copies") for each in said())
    few = Scope("full", models=(micro(),), seq_lens=(64, 128))
    (alone,) = [
        each for each in said(scope=few) if each.startswith("Feeding by pinned copies runs")
    ]
    assert "0 are faster, 0 slower and 16 not told apart" in alone


def test_the_quickest_names_the_loaders_that_were_not_timed(said):
    texts = said(overrule=lambda case: "oom" if (case.workload.data or NONE).n_workers else None)
    quickest = [each for each in texts if "The quickest of the loaders" in each]
    assert quickest and all("quickest of the loaders timed" in each for each in quickest)
    assert all(
        each.endswith(
            "; not timed: 8 loader workers with pageable copies, 8 loader workers with pinned "
            "non-blocking copies (out of memory)."
        )
        for each in quickest
    )


def test_of_fed_steps_without_a_resident_one_the_wait_is_told(said):
    texts = said(overrule=lambda case: None if case.workload.data else "crashed")
    assert any("a step waits" in each for each in texts)
    assert not any("resident" in each for each in texts)


def test_a_ratio_whose_interval_holds_one_is_not_told_apart(noisy):
    """Turns that differ by as much as the loader costs, fed and resident not alike."""
    texts = noisy(
        lambda case: (1.3, 0.7, 1.0)[case.workload.seed] if case.workload.data is None else 1.0
    )
    (told,) = [
        each
        for each in texts
        if "2 loader workers from python-topics by bytes cached runs" in each and "resident" in each
    ]
    assert told.endswith(" over 3 turns: not told apart).")
    (best,) = [
        each for each in texts if "quickest of the loaders (python-topics by bytes cached" in each
    ]
    assert best.endswith(" over 3 turns: not told apart).")


def test_what_slows_a_whole_turn_is_not_in_the_ratio(noisy):
    texts = noisy(lambda case: 1 + case.workload.seed)
    (told,) = [
        each
        for each in texts
        if "2 loader workers from python-topics by bytes cached runs" in each and "resident" in each
    ]
    assert told.endswith("(0.893× to 0.893× over 3 turns).")


def test_fed_steps_faster_than_resident_ones_are_called_noise(made):
    assert any("so much is this host's noise" in each for each in made("cpu", "small").notes)


def test_of_one_turn_the_sentence_says_that_it_is_of_one_process(noisy):
    texts = noisy(lambda case: 1.0, kept=lambda case: case.workload.seed == 0)
    (told,) = [
        each
        for each in texts
        if each.startswith("Feeding by 0 loader workers from python-topics by bytes on")
    ]
    assert told.endswith(" within one process of each).")


def test_samplers(said):
    assert said()[-2:] == [
        "Sampler per-rank: ranks 4, sequences 1,000, rank 0 reads 250, also read by another 0.",
        "Sampler same: ranks 4, sequences 1,000, rank 0 reads 1,000, also read by another 1,000.",
    ]
