"""What `attention` plans, tables and concludes from known figures."""

import msgspec
import numpy as np
import pytest

from peakward.studies import attention
from peakward.studies.attention import (
    cells,
    curves,
    grown,
    held_power,
    length,
    naive_reaches,
    place,
    points,
    time_power,
)
from peakward.studies.engine import view
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope
from peakward.studies.values import groups


@pytest.fixture
def said(setting, gathered):
    def make(scope="small", device="cpu", **options):
        here = setting(scope, device)
        return attention.STUDY.parts(gathered(attention.STUDY, here, **options), here).conclusions

    return make


def test_the_fastest_the_exponents_the_matrix_and_the_end(said, figures):
    found = said(overrule=lambda case: "oom" if _beyond(case) else None)
    forward, backward, growth, least, held, beside, limit = found
    assert figures(forward)["speed over naive"] == pytest.approx(8)
    # Of two medians known to 1% each: a ratio known to √2 of it.
    assert figures(forward)["speed over naive, low end"] == pytest.approx(8 * 0.986, rel=1e-3)
    assert "sdpa is the fastest" in backward.text
    lengths = np.array([128, 512, 1024])
    power, _ = np.polyfit(np.log(lengths), np.log(lengths * (lengths + 64)), 1)
    assert figures(growth)["exponent of memory held"] == pytest.approx(power)
    assert "sdpa: memory held" in least.text
    assert figures(least)["exponent of memory held"] == pytest.approx(1)
    assert figures(held)["of it the probability matrix"] == pytest.approx(1024 / (1024 + 64))
    assert beside.text.endswith("length 1,024 sdpa attention: held for backward 2.00 MiB.")
    assert limit.text == (
        "Under 384 MiB, fp32, head dim 64, naive attention, forward and backward, runs up to length "
        "512 and is out of memory at 1,024."
    )


@pytest.fixture
def slowed(setting, gathered, measure):
    """The conclusions of a CPU's grid in which cases take a factor of their time."""

    def make(factor):
        here = setting("small", "cpu")
        readings = gathered(attention.STUDY, here)
        for serial, each in enumerate(list(readings)):
            if each.status == "ok":
                told = measure(
                    each.case, each.protocol, here.environment, "ok", serial, factor(each.case)
                )
                readings.add(told)
        return attention.STUDY.parts(readings, here).conclusions

    return make


def test_how_backward_grows_is_told_of_the_long_end_alone(slowed, figures):
    """Short lengths are launches: a fit over them would call naive's square of the length a line."""
    said = slowed(lambda case: 16 if case.seq_len == 128 else 1)
    (growth, _) = [each for each in said if "memory held" in each.text]
    told = figures(growth)
    assert "from length 512 to 1,024 the time of backward" in growth.text
    assert told["growth"] == pytest.approx(4)
    assert told["growth, low end"] == pytest.approx(4 * 0.986, rel=1e-3)
    assert not any("exponent of backward time" in name for name in told)


def test_what_the_fastest_is_not_measurably_faster_than_is_named(slowed):
    tied, *_ = slowed(lambda case: 1.005 if case.attention == "flex" else 1)
    assert (
        "sdpa is the fastest of those timed, though not measurably faster than flex: " in tied.text
    )
    clear, *_ = slowed(lambda case: 1.5 if case.attention == "flex" else 1)
    assert "sdpa is the fastest of those timed: " in clear.text
    assert clear.text.endswith("; not timed: flash, flash-hopper (cannot run here).")


def test_products_in_another_precision_are_no_rival(said):
    found = [each.text for each in said("corners", "cuda") if each.text.startswith("In fp32")]
    assert not any("compiled, tf32 is the fastest" in text for text in found)
    other = [text for text in found if "compiled, tf32 (" in text]
    assert len(other) == 4
    assert all(": naive takes 8.00× the time of compiled, tf32 (" in text for text in other)


def test_in_bf16_the_matrix_is_two(said):
    (held, *_) = [
        each.text
        for each in said("corners", "cuda")
        if "probability matrix" in each.text and each.text.startswith("In bf16")
    ]
    assert "of it the probability matrix 100%" in held


def _beyond(case):
    return case.memory_limit_bytes and case.seq_len > 512


def test_where_naive_is_alone_nothing_is_faster(said):
    found = said(overrule=lambda case: None if _is_naive(case) else "crashed")
    texts = [each.text for each in found]
    assert not any("is the fastest" in text for text in texts)
    assert any("naive attention: held for backward" in text for text in texts)


def _is_naive(case):
    return case.attention == "naive" and case.compile == "none"


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()


def test_every_number_rests_on_a_measurement(said):
    for each in said("corners", "cuda"):
        assert all(proof.from_ids for proof in each.evidence)


def test_the_corners_are_the_ends_of_the_full_grid(setting):
    corners, full = (
        [case for case, _ in attention.STUDY.plan(setting(name))] for name in ("corners", "full")
    )
    for field in ("head_dim", "seq_len"):
        few, all_ = ({getattr(case, field) for case in cases} for cases in (corners, full))
        assert few < all_
        assert (min(few), max(few)) == (min(all_), max(all_))
    assert {case.batch_size for case in full} == {8}
    assert {case.n_heads for case in full} == {1}
    assert {case.head_dim for case in full} == {16, 32, 64, 128}
    assert {case.seq_len for case in full} == {256, 1024, 4096, 8192, 16384}


def test_every_arm_has_a_row_and_only_what_runs_is_planned(setting):
    here = setting()
    found = cells(view(points(here), Readings(), here))
    by_group = [[cell.name for cell in group] for group in groups(found, place)]
    fp32, bf16 = by_group[0], by_group[-1]
    assert len(fp32) == 11 * 3
    assert len(bf16) == 10 * 3
    assert "compiled, tf32" in fp32
    cases = [case for case, _ in attention.STUDY.plan(here)]
    assert {case.attention for case in cases if case.precision == "fp32"} == {
        *("naive", "sdpa", "sdpa-efficient", "sdpa-math", "flex", "flash"),
    }
    hopper = [case for case in cases if case.attention == "flash-hopper"]
    assert {case.head_dim for case in hopper} == {128}


def test_a_cpu_runs_what_it_can(setting):
    cases = [case for case, _ in attention.STUDY.plan(setting("small", "cpu"))]
    assert {(case.attention, case.pass_) for case in cases} == {
        *(("naive", "forward"), ("naive", "backward")),
        *(("sdpa", "forward"), ("sdpa", "backward")),
        ("flex", "forward"),
    }


def test_the_users_lengths_and_batch_size(setting):
    cases = [
        case
        for case, _ in attention.STUDY.plan(setting(Scope("corners", seq_lens=(64,), batch_size=2)))
    ]
    assert {(case.seq_len, case.batch_size) for case in cases} == {(64, 2)}


def test_curves_go_by_length(setting):
    here = setting()
    found = curves(view(points(here), Readings(), here))
    assert {tuple(cell.seq_len for cell in curve) for curve in found} == {(256, 4096, 16384)}


def test_the_matrix_is_naives_alone(setting, gathered):
    here = setting()
    for cell in cells(view(points(here), gathered(attention.STUDY, here), here)):
        assert (cell.matrix_share is not None) == (cell.name == "naive")
        if cell.matrix_share is not None:
            item = 4 if cell.point.precision == "fp32" else 6
            matrix = cell.matrix_share * cell.held_bytes
            assert matrix == pytest.approx(8 * cell.seq_len**2 * item)


def test_exponents_are_those_of_the_laws(setting, gathered):
    here = setting()
    found = {
        (curve[0].point.where, curve[0].name): curve
        for curve in grown(view(points(here), gathered(attention.STUDY, here), here))
    }
    naive = time_power(found["fp32, head dim 16", "naive"], "forward")
    assert naive.estimate == pytest.approx(2)
    assert naive.low < 2 < naive.high
    assert held_power(found["fp32, head dim 16", "naive"]) == pytest.approx(2, abs=0.02)
    assert held_power(found["fp32, head dim 16", "flash"]) == pytest.approx(1)
    assert ("fp32, head dim 16", "flash-hopper") not in found


def test_two_lengths_give_none(setting, gathered):
    here = setting()
    short = gathered(
        attention.STUDY, here, overrule=lambda case: "oom" if case.seq_len > 4096 else None
    )
    assert not list(grown(view(points(here), short, here)))


GIB = 2**30


@pytest.fixture
def searched(setting, gathered):
    def make(scope="corners", device="cuda", **options):
        here = setting(scope, device)
        readings = gathered(attention.STUDY, here, **options)
        return list(naive_reaches(view(points(here), readings, here))), readings

    return make


def test_a_peak_below_the_limit_settles_it_and_the_rest_is_run_under_it(searched):
    found, readings = searched()
    by_limit = {each.limit_bytes // GIB: each for each in found if each.first.precision == "fp32"}
    # Four times 8 × 16384² in fp32 is 32 GiB: too much for 24, little enough for 40.
    assert (length(by_limit[24].fits), length(by_limit[24].fails)) == (4096, 16384)
    assert by_limit[24].fails[1].verdict == "oom"
    assert (length(by_limit[40].fits), by_limit[40].fails) == (16384, None)
    probes = [each.case for each in readings if each.case.memory_limit_bytes]
    in_fp32 = [case for case in probes if case.precision == "fp32"]
    assert {(case.seq_len, case.memory_limit_bytes // GIB) for case in in_fp32} == {(16384, 24)}
    assert {(case.attention, case.pass_, case.compile) for case in probes} == {
        ("naive", "backward", "none")
    }


def test_a_cpu_is_probed_up_to_the_first_failure(searched):
    found, readings = searched("small", "cpu", overrule=_out_above(128))
    (end,) = found
    assert (length(end.fits), length(end.fails), end.limit_bytes) == (128, 512, 384 * 2**20)
    probed = [each.case.seq_len for each in readings if each.case.memory_limit_bytes]
    assert probed == [128, 512]


def _out_above(seq_len):
    return lambda case: "oom" if case.memory_limit_bytes and case.seq_len > seq_len else None


def test_limits_of_the_users(searched):
    scope = msgspec.structs.replace(Scope("corners"), limits_bytes=(GIB,))
    found, _ = searched(scope)
    assert {each.limit_bytes for each in found} == {GIB}
    assert {length(each.fits) for each in found} == {256}


def test_a_limit_above_the_devices_memory_is_noted(setting):
    *_, note = attention.STUDY.parts(Readings(), setting(memory=48 * GIB)).notes
    assert note == "Not tested: 80 GiB, more than this device's 48 GiB."


def test_time_and_memory_by_length(setting, gathered):
    here = setting("small", "cpu")
    forward, backward, held = attention.STUDY.parts(gathered(attention.STUDY, here), here).plots
    assert [line.name for line in forward.series] == ["naive", "compiled", "sdpa", "flex"]
    assert [line.name for line in backward.series] == ["naive", "compiled", "sdpa"]
    assert [point.x for point in held.series[0].points] == [128, 512, 1024]
    assert forward.series[0].points[0].low is not None


@pytest.fixture
def made(setting, gathered):
    def make(scope="corners", device="cuda", **options):
        here = setting(scope, device)
        return attention.STUDY.parts(gathered(attention.STUDY, here, **options), here)

    return make


def by_arm(rows, seq_len):
    return {row["attention"]: row for row in rows if row["length"] == seq_len}


def test_a_row_for_every_arm_with_its_reason(made, rows):
    tables = made().tables
    assert [each.title for each in tables] == [
        "Attention, fp32, head dim 16",
        "Attention, fp32, head dim 128",
        "Attention, bf16, head dim 16",
        "Attention, bf16, head dim 128",
        "Exponents in the length",
        "Naive attention, forward and backward, under memory limits",
    ]
    found = by_arm(rows(tables[0]), 4096)
    assert len(found) == 11
    assert found["flash-hopper"]["forward (95% interval)"] == "not available"
    assert found["flash-hopper"]["reason"] == "flash-hopper needs a type of 16 bits, got fp32"
    naive = found["naive"]
    assert naive["of it the probability matrix"] == pytest.approx(4096 / (4096 + 16))
    assert naive["reason"] is None
    assert found["flash"]["of it the probability matrix"] is None
    assert found["flash"]["held for backward"] == 8 * 4096 * 16 * 4


def test_what_ran_out_keeps_its_row(made, rows):
    def overrule(case):
        return "oom" if case.seq_len == 16384 and case.pass_ == "backward" else None

    found = by_arm(rows(made(overrule=overrule).tables[0]), 16384)["naive"]
    assert found["forward (95% interval)"] != "oom"
    assert found["backward (95% interval)"] == "oom"
    assert found["reason"] == "because oom"
    assert found["held for backward"] is None


def test_exponents_are_told_with_their_intervals(made, rows):
    growth = next(each for each in made().tables if each.title.startswith("Exponents"))
    naive = rows(growth)[0]
    assert naive["forward time (95% interval)"] == "2.000 (1.997–2.003)"
    assert naive["held for backward"] == pytest.approx(1.98, abs=0.01)


def test_a_limit_tells_both_sides(made, rows):
    (first, *_) = rows(made().tables[-1])
    assert (first["longest that fits"], first["shortest that does not"]) == (4096, 16384)
    assert first["status"] == "oom"
