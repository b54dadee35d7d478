"""What would be done."""

from peakward.levers.catalogue import lever
from peakward.tune.dry_run import planned
from peakward.tune.investigation import Investigation


def steps(studies, *names, forbids=None, calibration=None):
    asked = Investigation(
        case=studies.BASELINE,
        levers=tuple(lever(name) for name in names),
        budget_s=900.0,
        command="peakward run",
        obstacle=lambda pulled, case: "no" if pulled.name == forbids else None,
        to_command=lambda case: "",
    )
    return dict(planned(asked, studies.H200, calibration))


def test_the_stages_in_their_order_with_a_time_for_each(studies):
    found = steps(studies, "bf16", "sdpa")
    assert list(found) == [
        "measure this machine's ceilings",
        "measure the baseline",
        "profile the baseline",
        "screen bf16",
        "screen sdpa",
        "check the numbers of what gained",
        "confirm the composition and each of its levers",
        "measure the best composition",
        "profile the best composition",
    ]
    assert all(cost_s > 0 for cost_s in found.values())


def test_what_is_known_or_cannot_apply_is_not_planned(studies):
    found = steps(studies, "bf16", "sdpa", forbids="sdpa", calibration=studies.CALIBRATION)
    assert "measure this machine's ceilings" not in found
    assert "screen sdpa" not in found


def test_what_compiles_takes_longer_and_comes_last(studies):
    found = steps(studies, "compile", "sdpa")
    assert [each for each in found if each.startswith("screen")] == [
        "screen sdpa",
        "screen compile",
    ]
    assert found["screen compile"] > found["screen sdpa"]
    confirmed = "confirm the composition and each of its levers"
    assert found[confirmed] > steps(studies, "sdpa", "bf16")[confirmed]
