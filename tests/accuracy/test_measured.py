"""How the measurements of one case become one figure."""

from datetime import timedelta

import msgspec
import pytest

from accuracy.measured import FP8_SINCE, Stored, merged, stored, studies
from accuracy.replay import FORMER_KERNELS, not_replayed
from accuracy.seen import FITTED_ON
from stored_results import FOLDER, index


@pytest.fixture(scope="module")
def found():
    return stored(studies(FOLDER), FITTED_ON)


@pytest.fixture
def one(found):
    """Any measurement of a model's step that ran."""
    return next(each.measurement for each in found if each.measurement.status == "ok")


def measured(one, step_s, verdict="stable", file="a.json"):
    interval = msgspec.structs.replace(one.summary.median_s, estimate=step_s)
    return Stored(
        file,
        msgspec.structs.replace(
            one,
            summary=msgspec.structs.replace(one.summary, median_s=interval),
            validity=msgspec.structs.replace(one.validity, verdict=verdict),
        ),
    )


def test_of_equally_good_ones_the_median(one):
    (case,) = merged([measured(one, 1.0), measured(one, 5.0, file="b.json"), measured(one, 2.0)])
    assert (case.step_s, case.verdict, case.files) == (2.0, "stable", ("a.json", "b.json"))


def test_a_worse_one_counts_where_there_is_no_better(one):
    (both,) = merged([measured(one, 1.0, "unstable"), measured(one, 2.0, "throttled")])
    assert (both.step_s, both.verdict, len(both.taken), len(both.all)) == (1.0, "unstable", 1, 2)
    (three,) = merged([measured(one, 1.0, "unstable"), measured(one, 3.0), measured(one, 4.0)])
    assert (three.step_s, three.verdict) == (3.5, "stable")


def test_what_did_not_run_is_no_figure(one):
    failed = msgspec.structs.replace(one, status="oom", summary=None)
    assert merged([Stored("a.json", failed)]) == []


@pytest.mark.parametrize(("seconds", "n_cases"), [(-1, 0), (0, 1)])
def test_a_step_in_fp8_counts_from_when_its_kernels_are_those_of_today(one, seconds, n_cases):
    configuration = msgspec.structs.replace(one.case.configuration, precision="fp8")
    case = msgspec.structs.replace(one.case, configuration=configuration)
    started_at = (FP8_SINCE + timedelta(seconds=seconds)).isoformat()
    fp8 = Stored("a.json", msgspec.structs.replace(one, case=case, started_at=started_at))
    assert len(merged([fp8])) == n_cases
    assert [each.reason for each in not_replayed([fp8])] == [FORMER_KERNELS] * (1 - n_cases)


def test_other_records_are_passed_over(tmp_path):
    calibration, study = index().of("calibration")[0], index().of("study")[0]
    for each in (calibration, study):
        (tmp_path / each.path().name).write_bytes(each.read())
    entries = "".join(
        f'[[results]]\nname = "{each.name}"\nkind = "{each.kind}"\ndevice = "cpu"\nsubject = ""\n'
        'protocol = ""\ncommit = ""\nfiles = ["json"]\n'
        for each in (calibration, study)
    )
    (tmp_path / "index.toml").write_text(f"protocols = {{}}\n{entries}")
    assert list(studies(tmp_path)) == [study.path().name]


def test_every_case_is_there_once(found):
    cases = [each.case for each in merged(found)]
    assert len(cases) == len(set(cases)) >= 222
