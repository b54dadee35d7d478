"""What `data-loading` plans, and the figures that it reads."""

import msgspec
import pytest

from peakward.levers.catalogue import case_obstacle
from peakward.records.case import Source
from peakward.studies import data_loading
from peakward.studies.cases import with_work
from peakward.studies.data_loading.grid import (
    WARMUP_STEPS,
    read,
    read_ranked,
    resident,
    tokenizer,
)
from peakward.studies.scope import Scope


@pytest.mark.parametrize(
    ("scope", "device", "n"),
    [
        ("small", "cpu", 3 * (1 + 2 * 2) + 2),
        ("corners", "cuda", 3 * 4 * (1 + 2 * 2 * 2) + 2),
        ("full", "cuda", 3 * 20 * (1 + 2 * 3 * 4) + 2),
    ],
)
def test_how_many_cases(setting, scope, device, n):
    plan = data_loading.plan(setting(scope, device))
    assert len(plan) == n == len(set(plan))


@pytest.mark.parametrize(("scope", "device"), [("small", "cpu"), ("full", "cpu"), ("full", "cuda")])
def test_every_case_can_run_where_it_is_planned(setting, scope, device):
    for case, _ in data_loading.plan(setting(scope, device)):
        assert case_obstacle(case, compute_capability=(9, 0), has_compiler=True) is None


def test_timed_steps_come_after_what_workers_made_ahead(setting):
    for case, protocol in data_loading.plan(setting("full")):
        data = case.workload.data
        assert protocol.warmup_steps == WARMUP_STEPS > 2 * (data.n_workers if data else 0)


def test_every_fed_step_has_its_resident_one(setting):
    cases = {case for case, _ in data_loading.plan(setting())}
    assert {resident(case) for case in cases} <= cases


def test_what_the_user_asks_for_is_taken(setting):
    scope = Scope(
        "small",
        text=Source("kjv"),
        tokenizer=Source("/t.json", "1"),
        workers=(1, 3),
        seq_lens=(32,),
    )
    fed = [case.workload for case, _ in data_loading.plan(setting(scope, "cpu"))]
    data = [work.data for work in fed if work.data is not None]
    assert {each.text.name for each in data} == {"kjv"}
    assert {each.tokenizer for each in data} == {Source("/t.json", "1")}
    assert {each.n_workers for each in data if each.n_ranks == 1} == {1, 3}
    assert {work.seq_len for work in fed} == {32}


def test_byte_pairs_where_their_package_is(setting):
    here = setting("small", "cpu")
    assert tokenizer(here).name == "bytes"
    assert tokenizer(msgspec.structs.replace(here, has_tokenizers=True)).name == "bpe"


def test_figures(setting, gathered):
    here = setting("corners")
    readings = gathered(data_loading, here)
    cells = {
        (c.data.tokenise, c.data.n_workers, c.data.pin_memory): c for c in read(readings, here)
    }
    starved, fast = cells["on-the-fly", 0, False], cells["on-the-fly", 8, True]
    assert starved.over_resident.time.estimate == pytest.approx(1.6)
    assert starved.waited_share == pytest.approx(0.5 / 1.6)
    assert starved.made_per_s == pytest.approx(
        starved.case.workload.tokens_per_step / starved.waited_s
    )
    assert fast.over_resident.time.estimate == pytest.approx(1.02)
    assert fast.made_per_s is None
    assert [c.feeding.n_shared_sequences for c in read_ranked(readings, here)] == [0, 1000]


def test_a_case_that_failed_has_no_figures(setting, gathered):
    here = setting("corners")
    readings = gathered(data_loading, here, overrule=lambda case: "oom")
    for cell in read(readings, here):
        assert (cell.step_s, cell.waited_share, cell.over_resident, cell.made_per_s) == (None,) * 4


def test_turns_go_through_the_grid_forwards_and_backwards(setting):
    cases = [case for case, _ in data_loading.plan(setting())]
    turns = [cases[36 * turn : 36 * (turn + 1)] for turn in range(3)]
    assert [{case.workload.seed for case in turn} for turn in turns] == [{0}, {1}, {2}]
    first, second, third = ([with_work(case, seed=0) for case in turn] for turn in turns)
    assert first == second[::-1] == third
