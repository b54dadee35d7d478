"""The grid of `attention-parts`."""

import msgspec

from peakward.studies import attention_parts
from peakward.studies.attention_parts.grid import longest, plan, read
from peakward.studies.scope import Scope, micro


def test_heads_by_precision_by_three_lengths(setting):
    cases = [case for case, _ in plan(setting())]
    assert len(cases) == 12
    assert {case.precision for case in cases} == {"fp32", "bf16"}
    assert {case.seq_len for case in cases} == {128, 512, 1024}
    assert {(case.attention, case.pass_) for case in cases} == {("naive", "forward_backward")}


def test_a_cpu_runs_fp32_alone(setting):
    assert {case.precision for case, _ in plan(setting("small", "cpu"))} == {"fp32"}


def test_models_with_equal_heads_count_once_and_the_users_lengths_are_all(setting):
    twin = msgspec.structs.replace(micro(), name="twin", n_layers=1)
    scope = Scope("small", models=(micro(), twin), seq_lens=(16, 32))
    assert [case.seq_len for case, _ in plan(setting(scope, "cpu"))] == [16, 32]


def test_the_longest_whose_parts_are_known(setting, gathered):
    here = setting()
    cells = read(
        gathered(
            attention_parts, here, overrule=lambda case: "oom" if case.seq_len > 512 else None
        ),
        here,
    )
    assert len(cells) == 12
    assert [cell.case.seq_len for cell in longest(cells)] == [512] * 4
