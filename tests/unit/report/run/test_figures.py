import msgspec

from peakward.report.run.figures import figures
from peakward.report.run.investigation import read

replace = msgspec.structs.replace


def shown(study):
    return {each.name: (each.value, each.detail) for each in figures(read(study))}


def test_the_best_beside_the_baseline(run_study):
    found = shown(run_study)
    assert found["speed-up"] == ("10.30×", "10.27–10.33×, run in pairs")
    assert found["step"] == ("97.5 ms", "baseline 1.00 s")
    assert found["peak memory"] == ("25.7 GiB", "baseline 58.9 GiB")
    assert "ceiling share" not in found


def test_shares_of_different_peaks_are_not_set_beside_each_other(run_study):
    found = shown(run_study)
    assert found["MFU"][1] == "of 989 TFLOP/s bf16"
    assert found["share of floor"][1] is None
    before, after = run_study.predictions
    same = replace(run_study, predictions=(replace(before, compute_type="bf16"), after))
    assert shown(same)["MFU"][1].startswith("baseline ")
    assert shown(same)["share of floor"][1].startswith("baseline ")


def test_where_no_datasheet_is_known_the_ceiling_stands_in(run_study):
    unknown = tuple(replace(each, peak_flops_per_s=None) for each in run_study.predictions)
    found = shown(replace(run_study, predictions=unknown))
    assert "MFU" not in found
    assert found["ceiling share"][0] == "54.5%"


def test_a_baseline_alone_is_compared_with_nothing(run_study):
    alone = replace(run_study, measurements=run_study.measurements[:1], trials=())
    assert shown(alone)["step"] == ("1.00 s", None)
    assert "speed-up" not in shown(alone)
