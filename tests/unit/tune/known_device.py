"""A device whose step times are known, and investigations of it."""

import msgspec

from peakward.lab.measure.messages import Turn, TurnsTimed
from peakward.levers.catalogue import lever
from peakward.records.calibration import Absence, LaunchCost, Rates
from peakward.records.errors import PeakwardError
from peakward.records.lever import NumericsVerdict
from peakward.tune.investigation import Aim, Investigation
from peakward.tune.run import investigate


class Device:
    """Sweep, workers and store in one."""

    rounds = "processes"
    profiles_apart = True
    start_s = None
    n_at_once = 1
    n_prepared = 0

    def __init__(self, studies, step_s):
        self.studies, self.step_s = studies, step_s
        self.environment, self.workers, self.store = studies.H200, self, self
        self.measured, self.n_processes, self.recorded = {}, 0, {}
        self.done = []
        """What was run, in its order."""
        self.call_s = None
        """A recorded call on its host, where it can be measured; in a backward pass it takes twice that."""

    def prepare(self, n):
        pass

    def turn_s(self, case):
        return self.step_s(case)

    def measure(self, case, protocol):
        self.done.append("measure")
        made = self.studies.measurement(
            case, self.step_s(case), peak_gib=10, wall_s=1.0, protocol=protocol
        )
        self.measured[case, protocol] = made
        return made

    def measurement(self, case, protocol, key):
        return self.measured.get((case, protocol))

    def memory(self, case, key):
        return self.recorded.get((case, key))

    def turns(self, cases, protocol):
        self.done.append("turns")
        self.n_processes += 1
        turns = (Turn(median_s=self.turn_s(case), peak_bytes=9) for case in cases)
        return TurnsTimed(turns=tuple(turns))

    def numerics(self, claims):
        return tuple(NumericsVerdict(declared=each.declared, verdict="holds") for each in claims)

    def capture(self, case):
        raise PeakwardError("no module here")

    def profile(self, case, *where, n_steps=None, timeout_s=None):
        if n_steps is None:
            return
        self.done.append("profile")
        raise PeakwardError("no profiler here")

    def rates(self, subject, device_type):
        if self.call_s is None:
            return Rates(absent=(Absence(subject=subject, reason="no clock here"),))
        costs = {"autograd": self.call_s, "autograd in a backward pass": 2 * self.call_s}
        return Rates(
            launches=tuple(
                LaunchCost(side="host", operation=operation, call_s=call_s)
                for operation, call_s in costs.items()
            )
        )

    def calibration(self, key):
        return self.studies.CALIBRATION

    def trial(self, *key):
        return None

    def add_trial(self, trial): ...

    def add_study(self, study): ...

    def close(self): ...

    def raise_if_stopping(self): ...


def run(device, *names, aim=Aim(), budget_s=1e6, budget=None):  # noqa: B008
    asked = Investigation(
        case=device.studies.BASELINE,
        levers=tuple(lever(name) for name in names),
        budget_s=budget_s,
        command="peakward run",
        obstacle=lambda pulled, case: None,
        to_command=lambda case: "+".join(map(str, msgspec.structs.astuple(case.configuration))),
        aim=aim,
    )
    return investigate(
        asked,
        device,
        device,
        on_stage=lambda stage: None,
        on_prediction=lambda floor, forecast, fitting: None,
        budget=budget,
    )


class WithModules(Device):
    """Whose module's operators can be had."""

    def capture(self, case):
        from peakward.lab.levers.module_prediction import capture_case

        return capture_case(case)


def of_module(device, case, *names):
    asked = Investigation(
        case=case,
        levers=tuple(lever(name) for name in names),
        budget_s=1e6,
        command="peakward run",
        obstacle=lambda pulled, base: None,
        to_command=lambda case: None,
    )
    heard = []
    study = investigate(
        asked,
        device,
        device,
        on_stage=lambda stage: None,
        on_prediction=lambda *said: heard.append((*said, len(device.measured))),
    )
    return study, heard
