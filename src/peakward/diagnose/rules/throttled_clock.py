"""The device slowed its own clock

Sees: the verdict on a measurement's times, and the SM clock that its sensors gave.
Costs: every figure is that of a slower device than the one that was bought, and differs from run to
run.
Example: a power cap, a hot card, a clock that another user locked.
Lever: none; improve cooling, raise the power limit, or fix a lower clock for comparisons.
Wrong when: the highest clock seen is a boost that no load sustains.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.kernels import all_work

CODE = "DEV001"


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the measurement."""
    made = given.measurement
    if made is None or made.validity is None:
        return abstain(CODE, "a measurement")
    clock = None if made.telemetry is None else made.telemetry.sm_clock_mhz
    if made.validity.verdict != "throttled":
        return None
    lost = 0.0 if clock is None or not clock.high else 1 - clock.estimate / clock.high
    evidence = (
        ()
        if clock is None
        else (
            number(
                "SM clock, mean, MHz",
                clock.estimate,
                "count",
                "measurement telemetry.sm_clock_mhz.estimate",
            ),
            number(
                "SM clock, highest, MHz",
                clock.high,
                "count",
                "measurement telemetry.sm_clock_mhz.high",
            ),
        )
    )
    work = {} if given.time is None else all_work(given.time)
    return Symptom(
        cause=f"The device lowered its clock: {'; '.join(made.validity.reasons) or 'it gave no reason'}.",
        evidence=evidence,
        advice="cool the device, raise its power limit, or lock a lower clock before comparing",
        parts={name: seconds * lost for name, seconds in work.items()},
        share=lost if not work else None,
    )
