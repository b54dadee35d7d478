"""Cases built and changed, and the table of models."""

import msgspec

from peakward.models.presets import model
from peakward.prediction.parameters import n_parameters
from peakward.studies.cases import (
    model_case,
    place,
    sizes,
    under_limit,
    with_levers,
    with_work,
)

CASE = model_case(model("small"), 4, 128, "train_step", "cuda", precision="bf16")


def test_what_is_not_said_is_the_baseline():
    assert CASE.configuration.attention == "naive"
    assert CASE.configuration.precision == "bf16"
    assert (CASE.workload.batch_size, CASE.workload.seq_len) == (4, 128)


def test_changes_leave_the_rest():
    changed = with_work(with_levers(CASE, attention="sdpa"), batch_size=2)
    assert (changed.configuration.attention, changed.configuration.precision) == ("sdpa", "bf16")
    assert (changed.workload.batch_size, changed.workload.pass_) == (2, "train_step")
    assert under_limit(under_limit(CASE, 5), None) == CASE


def test_a_place_names_model_and_work():
    assert place(CASE) == "small 4 × 128 train_step"


def test_the_models_are_listed_once_with_their_true_counts():
    longer = msgspec.structs.replace(model("2.7B"), max_seq_len=2**20)
    table = sizes((model("small"), model("2.7B"), longer))
    assert [row[:2] for row in table.rows] == [
        ("small", n_parameters(model("small"))),
        ("2.7B", n_parameters(model("2.7B"))),
    ]
    assert table.rows[1][1] > 3.3e9, "its customary name, its true count"
