"""From the folder of results to the findings."""

from pathlib import Path

from accuracy import generality, measured, noise, products
from accuracy.groups import groups
from accuracy.reasons import Evidence, worst
from accuracy.records import Accuracy, Replayed
from accuracy.replay import Site, not_replayed, replay
from accuracy.seen import FITTED_ON
from peakward.records.case import ModelCase


def replayed(folder: Path, on: Site) -> list[Replayed]:
    """The stored cases of a device that are predicted, and nothing beside."""
    stored = measured.stored(measured.studies(folder), on.device)
    cases, _ = replay(measured.merged(stored), on)
    return cases


def judge(folder: Path, on: Site) -> Accuracy:
    """Everything that the report says of one device."""
    studies = measured.studies(folder)
    here = [each for each in studies.values() if measured.device_key(each.environment) == on.device]
    stored = measured.stored(studies, on.device)
    cases, refused = replay(measured.merged(stored), on)
    profiles = {
        each.case: each
        for study in here
        for each in study.profiles
        if isinstance(each.case, ModelCase) and products.eager(each)
    }
    evidence = Evidence(cases, profiles, on.calibrated)
    versions = {each.measurement.environment.torch for each in stored}
    return Accuracy(
        device=on.calibrated.name,
        device_key=on.device,
        calibration=on.calibration,
        fitted=on.device == FITTED_ON,
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
        refits=(tuple(generality.refits(cases, on.calibrated)) if on.device == FITTED_ON else ()),
        products=tuple(products.products(here, on.calibrated)),
    )
