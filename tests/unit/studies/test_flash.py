"""What `flash` plans, tables and concludes from known figures."""

import msgspec
import pytest

from peakward.records.calibration import MatmulRate
from peakward.records.measurement import Interval
from peakward.studies import claims
from peakward.studies.engine import view
from peakward.studies.flash import (
    STUDY,
    against,
    best,
    crossovers,
    flops,
    host_bound,
    launches,
    place,
    points,
    rate,
    roof,
    roof_share,
    seq_len,
    subject,
)
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope
from peakward.studies.values import groups

ROOFS = {"fp32": 50e12, "bf16": 400e12}


@pytest.fixture
def read_flash(setting, gathered, calibration):
    """read_flash(scope, device, roofs=, doubts=, **options): setting, readings."""

    def make(scope="corners", device="cuda", roofs=ROOFS, doubts=(), **options):
        here = setting(scope, device)
        readings = gathered(STUDY, here, **options)
        rates = tuple(
            MatmulRate(compute_type=name, size=8192, flops_per_s=rate)
            for name, rate in roofs.items()
        )
        readings.calibration = msgspec.structs.replace(
            calibration(device), matmul=rates, doubts=doubts
        )
        return here, readings

    return make


@pytest.fixture
def seen(read_flash):
    def make(*scope, **options):
        here, readings = read_flash(*scope, **options)
        return view(points(here), readings, here)

    return make


def test_the_best_rate_and_its_share_of_the_roof(seen, figures):
    found = list(best(seen()))
    # Our first kernel in both types, the other in bf16 alone; three passes of two head dims.
    assert len(found) == (2 + 1) * 2 * 3
    first = figures(found[0])
    assert first["rate"] == pytest.approx(64e12)
    assert first["share of the roof"] == pytest.approx(64 / 400)
    without = list(best(seen(roofs={})))
    assert without[0].text.endswith("TFLOP/s) within one process.")


def test_gains_over_every_rival(seen):
    found = list(against(seen()))
    rivals = ("naive", "compiled", "flex", "sdpa", "cudnn", "flash", "efficient", "math")
    assert [each.text.split(" runs at ")[0] for each in found] == [
        ours for ours in ("flash", "flash-hopper") for _ in rivals
    ]
    assert "8.00× the speed of naive at least" in found[0].text


@pytest.mark.parametrize(
    ("rival_at", "said"),
    [
        ((), "the fastest at every length"),
        ((128,), "the fastest from length 512 on"),
        ((128, 512), "the fastest at length 1,024 alone"),
        ((128, 512, 1024), "not measurably the fastest at length 1,024"),
        ((1024,), "not measurably the fastest at length 1,024"),
    ],
)
def test_from_which_length_on_it_is_the_fastest(rival_at, said, seen):
    """flex, in the fake lab as fast as sdpa, runs at some lengths alone."""

    def overrule(case):
        return "crashed" if case.attention == "flex" and case.seq_len not in rival_at else None

    scope = Scope("small", seq_lens=(128, 512, 1024))
    found = list(crossovers(seen(scope, "cpu", overrule=overrule)))
    text = found[0].text.replace(" of those timed", "")
    assert f"In fp32, head dim 64, forward, {said}: " in text


@pytest.mark.parametrize(
    ("high", "said"), [(0.96, "not the fastest"), (1.02, "not measurably the fastest")]
)
def test_slower_is_told_from_not_measurably_faster(high, said, seen, monkeypatch):
    slower = Interval(estimate=0.95, low=0.94, high=high)
    monkeypatch.setattr(claims, "time_ratio", lambda *_: slower)
    found = list(crossovers(seen(Scope("small", seq_lens=(128,)), "cpu")))
    assert f"forward, {said} at length 128: " in found[0].text


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("oom", "flex (out of memory)"),
        ("timeout", "flex (timed out)"),
        ("crashed", "flex (crashed)"),
        ("ok", "flex (not run)"),
    ],
)
def test_who_was_not_timed_is_named_in_the_sentence_that_says_the_fastest(status, said, read_flash):
    def overrule(case):
        return status if case.attention == "flex" else None

    here, readings = read_flash(Scope("small", seq_lens=(128,)), "cpu", overrule=overrule)
    kept = Readings(each for each in readings if status != "ok" or each.case.attention != "flex")
    (first, *_) = crossovers(view(points(here), kept, here))
    assert first.text.startswith("In fp32, head dim 64, forward, the fastest of those timed at")
    assert first.text.endswith(f"; not timed: {said}, flash, flash-hopper (cannot run here).")


def test_the_roof_is_that_of_the_type_that_the_products_run_as(read_flash):
    here, readings = read_flash(roofs={"fp32": 50e12, "tf32": 300e12, "bf16": 600e12})
    roofs = {
        row.name: roof(row)
        for row in view(points(here), readings, here).rows
        if row.point.precision == "fp32"
    }
    assert roofs["naive"] == roofs["sdpa-math"] == roofs["flex"] == 50e12
    assert roofs["flash"] == roofs["sdpa-efficient"] == 100e12
    assert roofs["compiled"] is roofs["sdpa"] is None
    texts = [each.text for each in STUDY.parts(readings, here).conclusions]
    assert any("of the bf16 matmul roof for a product made of 6." in each for each in texts)


def test_nothing_ran_nothing_said(read_flash):
    here, readings = read_flash(overrule=lambda case: "crashed")
    assert STUDY.parts(readings, here).conclusions == ()


def test_the_full_grid(setting):
    cases = [case for case, _ in STUDY.plan(setting("full"))]
    assert {case.seq_len for case in cases} == {2**power for power in range(7, 17)}
    assert {case.head_dim for case in cases} == {16, 32, 64, 128}
    assert {case.pass_ for case in cases} == {"forward", "backward", "forward_backward"}
    assert {case.precision for case in cases} == {"fp32", "bf16"}
    assert {(case.batch_size, case.n_heads) for case in cases} == {(1, 1)}


def test_every_arm_has_a_row_at_every_size(setting):
    here = setting("full")
    for group in groups(view(points(here), Readings(), here).rows, place):
        assert len(group) == 10 * 10


def test_ours_is_the_subject_and_where_it_cannot_run_torchs_choice(setting):
    gpu, cpu = setting(), setting("small", "cpu")
    assert subject(view(points(gpu), Readings(), gpu)) == ("flash", "flash-hopper")
    assert subject(view(points(cpu), Readings(), cpu)) == ("sdpa",)


@pytest.mark.parametrize(
    ("asked", "found"),
    [(("fp32",), {"fp32"}), (("bf16", "fp8"), {"bf16"}), (("fp8",), {"fp32", "bf16"})],
)
def test_precisions_that_were_asked_for_or_where_none_of_them_is_there_all(setting, asked, found):
    assert {each.precision for each in points(setting(Scope("corners", precisions=asked)))} == found


@pytest.mark.parametrize(
    ("pass_", "factor"), [("forward", 1), ("backward", 2.5), ("forward_backward", 3.5)]
)
def test_flops_are_half_of_the_square_and_backward_two_and_a_half_times_that(
    setting, pass_, factor
):
    here = setting(Scope("corners", seq_lens=(256,)))
    rows = view(points(here), Readings(), here).rows
    case_flops = {row.point.case: flops(row) for row in rows if row.point.case.pass_ == pass_}
    for case, found in case_flops.items():
        assert found == factor * 2 * 256**2 * case.head_dim


def test_a_rate_is_flops_over_time_and_its_share_that_of_the_roof(read_flash):
    here, readings = read_flash()
    for row in view(points(here), readings, here).rows:
        if row.point.absent is None and row.point.case.pass_ == "forward":
            precision = row.point.precision
            true = {"naive": 1, "compiled": 2}.get(row.name, 8) * {"fp32": 1e12, "bf16": 8e12}[
                precision
            ]
            found = rate(row)
            assert found.estimate == pytest.approx(true)
            assert found.low < true < found.high
            if precision == "bf16" or row.name in ("naive", "flex", "sdpa-math"):
                above = {"fp32": 50e12, "bf16": 400e12}[precision]
                assert roof_share(row) == pytest.approx(true / above)


def test_without_a_rate_of_the_type_there_is_no_share(read_flash):
    here, readings = read_flash(roofs={"fp32": 50e12})
    rows = view(points(here), readings, here).rows
    assert {roof_share(row) for row in rows if row.point.precision == "bf16"} == {None}


def host(readings, seconds):
    """Every time is at least this long, as where a GPU waits for its host."""
    for each in tuple(readings):
        if each.summary is None:
            continue
        step_s = max(seconds, each.summary.median_s.estimate)
        median = Interval(estimate=step_s, low=step_s * 0.99, high=step_s * 1.01)
        summary = msgspec.structs.replace(each.summary, median_s=median)
        readings.add(msgspec.structs.replace(each, summary=summary))
    return readings


def told(read_flash, seconds, **options):
    here, readings = read_flash(**options)
    return view(points(here), host(readings, seconds), here)


def test_where_work_takes_the_time_nothing_is_said(read_flash):
    found = told(read_flash, 0.0)
    assert host_bound(found) == []
    assert not list(launches(found))


def test_what_takes_no_longer_than_the_shortest_is_the_hosts(read_flash):
    found = told(read_flash, 2e-4)
    bound = host_bound(found)
    assert set(map(seq_len, bound)) == {128, 4096}
    (said,) = launches(found)
    timed = sum(row.status == "ok" for row in found.rows)
    assert said.text.startswith(f"In {len(bound)} of {timed} times, of lengths up to 4,096, ")


def test_such_times_are_compared_in_no_sentence(read_flash):
    found = told(read_flash, 2e-4)
    ids = {row.measurement.id for row in host_bound(found)}
    said = (*best(found), *against(found), *crossovers(found))
    assert said and ids
    assert not any(set(each.from_ids) & ids for one in said for each in one.evidence)


@pytest.mark.parametrize(("roof_flops", "is_bound"), [(1e18, True), (1e12, False)])
def test_of_a_call_timed_at_one_length_the_share_of_the_roof_tells(
    read_flash, roof_flops, is_bound
):
    roofs = dict.fromkeys(("fp32", "tf32", "bf16"), roof_flops)
    found = told(read_flash, 0.0, scope=Scope("corners", seq_lens=(4096,)), roofs=roofs)
    known = {row.point.case for row in found.rows if roof_share(row) is not None}
    assert {row.point.case for row in host_bound(found)} == (known if is_bound else set())


def test_a_cpu_has_no_launches(read_flash):
    here, readings = read_flash(scope="small", device="cpu", roofs={"fp32": 1e18})
    assert host_bound(view(points(here), host(readings, 1.0), here)) == []
    parts = STUDY.parts(readings, here)
    assert not any("launches" in each.text for each in parts.conclusions)
    assert not any("host" in each for each in parts.notes)


def over_roof(read_flash, **options):
    here, readings = read_flash(**options)
    return [note for note in STUDY.parts(readings, here).notes if "above the roof" in note]


def test_nothing_is_said_below_it(read_flash):
    assert over_roof(read_flash) == []


def test_tensor_cores_are_not_held_to_the_roof_of_fp32(read_flash):
    here, readings = read_flash(roofs={"fp32": 0.5e12, "tf32": 1e15, "bf16": 1e15})
    rows = view(points(here), readings, here).rows
    above = {row.name for row in rows if (roof_share(row) or 0) > 1}
    assert above == {"naive", "sdpa-math", "flex"}


def test_doubts_of_the_calibration_are_named(read_flash):
    (note,) = over_roof(
        read_flash, scope="small", device="cpu", roofs={"fp32": 5e12}, doubts=("it rained",)
    )
    assert note.endswith("When the roof was measured, it rained: it may be too low.")


def test_otherwise_the_product_was_not_the_best(read_flash):
    (note,) = over_roof(read_flash, roofs={"bf16": 5e12})
    assert note.endswith("The square product of the calibration was not this device's best.")


def test_a_line_for_each_arm_that_ran(read_flash):
    here, readings = read_flash("small", "cpu")
    forward, backward, both = STUDY.parts(readings, here).plots
    assert [line.name for line in forward.series] == ["naive", "compiled", "sdpa", "flex"]
    assert [line.name for line in backward.series] == ["naive", "compiled", "sdpa"]
    assert [point.x for point in both.series[0].points] == [128, 1024]


def test_a_table_for_each_type_head_and_pass_a_row_for_each_arm(read_flash, rows):
    here, readings = read_flash()
    tables = STUDY.parts(readings, here).tables
    assert len(tables) == 2 * 2 * 3
    assert tables[0].title == "Attention, bf16, head dim 64, forward"
    found = {row["attention"]: row for row in rows(tables[6]) if row["length"] == 4096}
    assert len(found) == 10
    assert found["flash"]["status"] == "ok"
    assert found["sdpa-cudnn"]["status"] == "not available"
    assert found["sdpa-cudnn"]["reason"].endswith("got float32, not a type of 16 bits")
    assert found["sdpa-cudnn"]["rate"] is None


def test_what_ran_out_keeps_its_row(read_flash, rows):
    here, readings = read_flash(
        overrule=lambda case: "oom" if (case.attention, case.seq_len) == ("naive", 65536) else None
    )
    found = [
        row
        for table in STUDY.parts(readings, here).tables
        for row in rows(table)
        if row["status"] == "oom"
    ]
    assert len(found) == 2 * len(STUDY.parts(readings, here).tables)
    assert {row["reason"] for row in found} == {"because oom"}
