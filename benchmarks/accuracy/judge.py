"""From the folder of results to the findings."""

from pathlib import Path

from accuracy import generality, measured, noise, products
from accuracy.groups import groups
from accuracy.reasons import Evidence, worst
from accuracy.records import Accuracy, Replayed
from accuracy.replay import CALIBRATION, models, not_replayed, replay
from peakward.records.case import ModelCase


def replayed(folder: Path) -> list[Replayed]:
    """The stored cases that are predicted, and nothing beside."""
    cases, _ = replay(measured.merged(measured.stored(measured.studies(folder))), models(folder))
    return cases


def judge(folder: Path) -> Accuracy:
    """Everything that the report says."""
    studies, on = measured.studies(folder), models(folder)
    stored = measured.stored(studies)
    cases, refused = replay(measured.merged(stored), on)
    profiles = {
        each.case: each
        for study in studies.values()
        for each in study.profiles
        if isinstance(each.case, ModelCase) and products.eager(each)
    }
    evidence = Evidence(cases, profiles, on.calibrated)
    versions = {each.measurement.environment.torch for each in stored}
    return Accuracy(
        device=on.calibrated.name,
        calibration=CALIBRATION,
        torch=tuple(sorted(each for each in versions if each)),
        n_measurements=sum(len(each.medians_s) for each in cases),
        cases=tuple(cases),
        refused=tuple(refused + not_replayed(stored)),
        groups=tuple(groups(cases)),
        worst=tuple(worst(cases, evidence)),
        worst_by_device=tuple(
            worst([each for each in cases if each.calibrated.bound == "device"], evidence)
        ),
        sessions=tuple(noise.sessions(stored, cases)),
        repeats=tuple(noise.repeats(cases)),
        refits=tuple(generality.refits(cases, on.calibrated.call_s)),
        products=tuple(products.products(studies.values(), on.calibrated)),
    )
