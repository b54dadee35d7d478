"""Every layout ends with a single process's parameters, on 2 and 4 ranks over gloo."""

from itertools import product

import pytest

from tiers import in_full
from unit.lab.parallel.job import run_ranks


def layout(**axes):
    return axes


TWO = {
    "ddp": ("odd", layout(dp=2)),
    "ddp per parameter": ("tied", layout(dp=2, bucket_mb=0)),
    "ddp, micro-batches": ("odd", layout(dp=2, n_micro_batches=2)),
    "ddp, unused looked for": ("odd", layout(dp=2, find_unused=True)),
    "overlapped": ("odd", layout(dp=2, data="overlapped")),
    "overlapped, micro-batches": ("tied", layout(dp=2, data="overlapped", n_micro_batches=4)),
    "zero1": ("odd", layout(dp=2, data="zero1")),
    "zero2": ("odd", layout(dp=2, data="zero2")),
    "fsdp": ("odd", layout(dp=2, data="fsdp")),
    "fsdp, micro-batches": ("odd", layout(dp=2, data="fsdp", n_micro_batches=2)),
    "fsdp, two blocks at once": ("odd", layout(dp=2, data="fsdp", blocks_together=2)),
    "fsdp whole": ("tied", layout(dp=2, data="fsdp", wrap="whole")),
    "flat": ("odd", layout(dp=2, data="flat")),
    "per-parameter": ("odd", layout(dp=2, data="per-parameter")),
    "tp": ("tied", layout(tp=2)),
    "tp, learned positions": ("learned", layout(tp=2)),
    "gpipe": ("tied", layout(pp=2, n_micro_batches=2, schedule="gpipe")),
    "1f1b": ("learned", layout(pp=2, n_micro_batches=4)),
    "interleaved": (
        "untied",
        layout(pp=2, n_micro_batches=4, schedule="interleaved", stages_per_rank=2),
    ),
}
FOUR = {
    "ddp": ("odd", layout(dp=4)),
    "overlapped": ("odd", layout(dp=4, data="overlapped", bucket_mb=0)),
    "zero1": ("odd", layout(dp=4, data="zero1")),
    "zero1, nothing owned": ("single", layout(dp=4, data="zero1")),
    "fsdp": ("odd", layout(dp=4, data="fsdp")),
    "fsdp, nothing owned": ("single", layout(dp=4, data="fsdp")),
    "zero2 of the decoder": ("tied", layout(dp=4, data="zero2")),
    "fsdp × tp": ("tied", layout(dp=2, data="fsdp", tp=2)),
    "overlapped × tp": ("untied", layout(dp=2, data="overlapped", tp=2)),
    "ddp × pp": ("tied", layout(dp=2, pp=2, n_micro_batches=2)),
    "fsdp × pp": ("untied", layout(dp=2, data="fsdp", pp=2, n_micro_batches=2)),
    "tp × pp": ("tied", layout(tp=2, pp=2, n_micro_batches=2)),
}
OPTIMIZERS = ("sgd", "adamw")
WITH_STATE = ("ddp", "zero1", "zero2", "fsdp", "tp", "1f1b")
"""Of two ranks: a layout of each kind also with an optimiser that has a state."""
QUICK = [(name, "sgd") for name in TWO] + [(name, "adamw") for name in WITH_STATE]
OTHERS = [(name, "adamw") for name in TWO if name not in WITH_STATE]
CASES = [(2, *each) for each in QUICK]
CASES += in_full((2, *each) for each in OTHERS)
CASES += in_full((4, name, optimizer) for name in FOUR for optimizer in OPTIMIZERS)
"""Ranks, layout, optimiser. Four processes of torch take two cores half a minute."""


def cases_of(rows, chosen):
    """By layout and optimiser."""
    return {
        (name, optimizer): {
            "kind": rows[name][0],
            "layout": rows[name][1],
            "optimizer": optimizer,
        }
        for name, optimizer in chosen
    }


RECOMPUTED = ("ddp", "overlapped", "zero1", "fsdp", "tp", "1f1b", "interleaved")


@pytest.fixture(scope="module")
def job_of_two():
    """What each of two ranks found: by case, and of the stages that are left."""
    cases = cases_of(TWO, QUICK)
    for name in RECOMPUTED:
        cases[name, "recomputed"] = cases[name, "sgd"] | {"checkpointing": "every-block"}
    given = {"cases": list(cases.values())}
    ranks = run_ranks("layouts:compare_and_look", given, n_ranks=2, timeout_s=400)
    by_case = zip(*(each["compared"] for each in ranks), strict=True)
    return dict(zip(cases, by_case, strict=True)), [each["stages"] for each in ranks]


@pytest.fixture(scope="module")
def two(job_of_two):
    return job_of_two[0]


def compared(cases, n_ranks):
    given = {"cases": list(cases.values())}
    by_rank = run_ranks("layouts:compare", given, n_ranks=n_ranks, timeout_s=400)
    return dict(zip(cases, zip(*by_rank, strict=True), strict=True))


@pytest.fixture(scope="module")
def others_of_two():
    return compared(cases_of(TWO, OTHERS), 2)


@pytest.fixture(scope="module")
def four():
    return compared(cases_of(FOUR, product(FOUR, OPTIMIZERS)), 4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}: {case[1]}, {case[2]}")
def test_three_steps_end_with_the_parameters_of_one_process(case, request):
    n_ranks, name, optimizer = case
    of_two = "two" if (name, optimizer) in QUICK else "others_of_two"
    found = request.getfixturevalue(of_two if n_ranks == 2 else "four")
    ranks = found[name, optimizer]
    assert len(ranks) == n_ranks
    assert set().union(*(each["names"] for each in ranks)) >= set(ranks[0]["all_names"])
    for each in ranks:
        assert each["n_gradients"] > 0
        # AdamW divides by the root of the second moment, which amplifies noise where it is near 0.
        looked_at = each["parameters"] if optimizer == "sgd" else each["gradients"]
        assert looked_at < 1e-12


def test_blocks_are_computed_again_and_the_same(two):
    assert [each["computed"] for each in two["ddp", "sgd"]] == [1.0, 1.0]
    for name in RECOMPUTED:
        found = two[name, "recomputed"]
        assert max(each["parameters"] for each in found) < 1e-12, name
        # A pipeline first asks each stage for the shapes of its output.
        assert min(each["computed"] for each in found) > 1.9, name


@pytest.mark.full
def test_compiled_blocks_compute_the_same():
    names = ("tp", "fsdp", "overlapped")
    kinds = {"tp": "tied", "fsdp": "tied", "overlapped": "tied"}
    cases = [
        {
            "kind": kinds[name],
            "layout": TWO[name][1],
            "optimizer": "sgd",
            "compiled": True,
            "checkpointing": checkpointing,
        }
        for name in names
        for checkpointing in ("none", "every-block")
    ]
    by_rank = run_ranks(
        "layouts:compare", {"cases": cases}, n_ranks=2, timeout_s=400, patience_s=200
    )
    for case, *found in zip(cases, *by_rank, strict=True):
        assert max(each["parameters"] for each in found) < 1e-12, case


@pytest.mark.parametrize("name", ["zero1", "zero2", "fsdp"])
def test_two_ranks_share_the_optimizer_state(two, name):
    """Each holds half of it: of ZeRO-1 whole parameters, of which the largest is a third of all."""
    ranks = two[name, "adamw"]
    held = [each["held"]["optimizer_state"] for each in ranks]
    whole = ranks[0]["alone"]["optimizer_state"]
    assert whole <= sum(held) <= 1.05 * whole  # Counts of steps are held twice, and shards padded.
    assert max(held) < 0.7 * whole


def test_ddp_holds_all_of_it_on_both_ranks(two):
    for each in two["ddp", "adamw"]:
        assert each["held"]["optimizer_state"] == each["alone"]["optimizer_state"]


def test_fsdp_holds_half_of_the_parameters(two):
    for each in two["fsdp", "adamw"]:
        assert each["held"]["parameters"] < 0.7 * each["alone"]["parameters"]


@pytest.mark.parametrize("name", ["ddp", "overlapped", "zero1", "zero2", "fsdp", "flat"])
def test_buffers_come_from_the_first_rank(two, name):
    assert [each["buffer"] for each in two[name, "sgd"]] == [0.25, 0.25]


def test_every_rank_of_a_mean_sees_its_own_loss(two):
    losses = [each["losses"] for each in two["ddp", "sgd"]]
    assert losses[0] != losses[1]


@pytest.mark.full
def test_a_rank_that_owns_nothing_of_zero1_holds_no_state(four):
    held = [each["held"]["optimizer_state"] for each in four["zero1, nothing owned", "adamw"]]
    assert sorted(held)[:3] == [0, 0, 0] and max(held) > 0


def test_a_rank_of_a_pipeline_lets_go_of_the_other_ranks_stages(job_of_two):
    """On four H100s each rank of `2.7B` kept 4.8 GiB of parameters that it did not need."""
    _, (first, second) = job_of_two
    assert first == {"left": [0, 1], "held": 2}
    assert second == {"left": [2, 3], "held": 2}
