"""An H200's laboratory in simulated seconds: a whole run of one of the `subjects` in it."""

from collections import Counter

import msgspec

from peakward.lab.measure.messages import Turn, TurnsTimed
from peakward.levers import catalogue
from peakward.records.errors import OutOfTimeError, PeakwardError
from peakward.records.lever import Foretold, NumericsVerdict
from peakward.records.measurement import CompileReport, Interval, Run
from peakward.tune import pipeline
from peakward.tune.forecasts import Forecasts
from peakward.tune.investigation import Investigation
from peakward.tune.ledger import Budget
from peakward.tune.run import investigate

from .known_device import Device

RATES = {
    "fp32": 51e12,
    "tf32": 412e12,
    "bf16": 795e12,
    "bf16-mixed": 795e12,
    "fp16-mixed": 765e12,
    "fp8": 1380e12,
}
"""That of fp8 is reckoned."""


class Lab(Device):
    """Sweep, workers and store in one, by the clock `now_s`. On 16 cores, whose spare processes start beside
    what is not timed."""

    n_at_once = 8

    def __init__(self, studies, subject):
        super().__init__(studies, self.step_of)
        self.subject, self.now_s = subject, 0.0
        self.left_s = lambda: 1e9
        self.spares, self.attached, self.built, self.held = [], False, set(), set()
        self.counts = Counter()
        self.screened = []
        """The settings that each screening adds to its base's, in their order."""

    @property
    def start_s(self):
        return self.subject.start_s

    @property
    def n_prepared(self):
        return len(self.spares)

    def step_of(self, case):
        return self.subject.step_of(case)

    def spend(self, cost_s):
        left_s = self.left_s()
        if cost_s > left_s:
            self.now_s += max(left_s, 0.0)
            raise OutOfTimeError("its time in the budget ended while timing")
        self.now_s += cost_s

    def prepare(self, n):
        while len(self.spares) < min(n, self.n_at_once):
            self.spares.append(self.now_s + self.subject.start_s)

    def close(self):
        self.attached = True

    def _enter(self):
        """A worker that times: the one that is there, or a new one."""
        if self.attached:
            ready_s = self.spares.pop(0) if self.spares else self.now_s + self.subject.start_s
            self.spend(max(ready_s - self.now_s, 0.0))
            self.attached, self.held = False, set()

    def _compiling_s(self, case):
        """By torch and by the compilers of kernels of our own: everything that is built for the first time,
        and less than half of what torch compiles where it lies in a cache."""
        torchs, ours = self.subject.compile_parts_s(case), self.subject.kernel_parts_s(case)
        here, there = self.held, self.built
        by_torch_s = sum(
            s * (0.4 if part in here else 0.45 if part in there else 1.0)
            for part, s in torchs.items()
        )
        self.held |= torchs.keys()
        by_us_s = sum(s for part, s in ours.items() if part not in self.built)
        self.built |= torchs.keys() | ours.keys()
        return by_torch_s, by_us_s

    def measure(self, case, protocol):
        if (case, protocol) in self.measured:
            return self.measured[case, protocol]
        self._enter()
        self.counts["headline" if protocol.phases else "screening"] += 1
        settings = set(case.configuration.settings.items())
        self.screened.append(settings - set(self.subject.case.configuration.settings.items()))
        if (reason := self.subject.fails(case)) is not None:
            self.spend(self.subject.build_s)
            failed = self.studies.measurement(case, 1.0, peak_gib=10, wall_s=2.0, protocol=protocol)
            self.measured[case, protocol] = msgspec.structs.replace(
                failed, status="invalid", reason=reason, summary=None
            )
            self.attached = True  # What failed ends its worker.
            return self.measured[case, protocol]
        step_s, (compiling_s, kernels_s) = self.step_of(case), self._compiling_s(case)
        timed_s = max(protocol.max_timed_s, 5 * step_s)
        wall_s = self.subject.build_s + 10 * step_s + timed_s + compiling_s + kernels_s
        self.spend(wall_s)
        report = CompileReport(compile_s=compiling_s, n_graphs=1, n_graph_breaks=0, n_recompiles=0)
        self.measured[case, protocol] = self.studies.measurement(
            case,
            step_s,
            peak_gib=10,
            wall_s=wall_s,
            protocol=protocol,
            compile=report if compiling_s else None,
            runs=(
                Run(
                    warmup_s=(step_s + compiling_s, *(step_s,) * 9),
                    steps_s=(step_s,) * round(timed_s / step_s),
                ),
            ),
        )
        return self.measured[case, protocol]

    def turns(self, cases, protocol):
        self._enter()
        for each in self.spares:
            self.spend(max(each - self.now_s, 0.0))
        self.counts["process"] += 1
        self.counts["turn"] += len(cases)
        for case in cases:
            step_s = self.step_of(case)
            timed_s = max(protocol.max_timed_s, 5 * step_s)
            self.spend(self.subject.build_s + 3 * step_s + timed_s + sum(self._compiling_s(case)))
        # A host's speed differs by half a per cent from process to process.
        drift = 1 + 0.005 * (-1) ** self.counts["process"]
        return TurnsTimed(
            turns=tuple(
                Turn(median_s=self.step_of(each) * (drift if i else 1.0), peak_bytes=9)
                for i, each in enumerate(cases)
            )
        )

    def numerics(self, claims):
        cases = {case for each in claims for case in (each.base, each.candidate)}
        self.counts["oracle"] += 1
        self.counts["checked"] += len(cases)
        compiling_s = sum(
            min(sum(self.subject.compile_parts_s(case).values()), self.subject.compile_s)
            + sum(self.subject.kernel_parts_s(case).values())
            for case in cases
        )
        self.spend((2 + len(cases)) * self.subject.check_s + compiling_s)
        return tuple(NumericsVerdict(declared=each.declared, verdict="holds") for each in claims)

    def profile(self, case, *where, n_steps=None, timeout_s=None):
        if n_steps is None:
            return
        self._enter()
        self.spend(self.subject.profile_s)
        self.attached = True
        raise PeakwardError("no profiler here")


class Expectations:
    """What is predicted of steps, and the rates of products."""

    def __init__(self, subject):
        self._subject = subject

    def _predicted_s(self, case):
        """Seconds of a step, of which a capture sees precision, blocks compiled and the optimizer."""
        settings = case.configuration.settings
        own = self._subject.case.configuration.settings
        precision = settings["precision"]
        found = self._subject.predicted_s.get(precision)
        for pair in settings.items() - own.items() - {("precision", precision)}:
            ratio = self._subject.predicted.get((precision, pair))
            found = None if found is None or ratio is None else found * ratio
        return found

    def foretold(self, base, candidate):
        before, after = map(self._predicted_s, (base, candidate))
        if before is None or after is None:
            return Foretold()
        ratio = after / before
        return Foretold(time_ratio=Interval(estimate=ratio, low=ratio * 0.7, high=ratio * 1.3))

    def by_rates(self, base, candidate):
        before, after = base.configuration.precision, candidate.configuration.precision
        return None if before == after else RATES[before] / RATES[after]

    def hopeless(self, base, candidate, base_s):
        return None

    def bound(self, base, candidate, base_s):
        return None


def searched(studies, subject, budget_s, monkeypatch, on_stage=lambda stage, lab: None):
    """The study of a whole run of so many simulated seconds, and the laboratory that it was made in."""
    lab = Lab(studies, subject)
    monkeypatch.setattr(pipeline, "Expectations", lambda *_: Expectations(subject))
    monkeypatch.setattr(Forecasts, "graph", lambda _self, _case: subject.graph)

    def obstacle(lever, case):
        return catalogue.obstacle(lever, case, compute_capability=(9, 0), has_compiler=True)

    asked = Investigation(
        case=subject.case,
        levers=catalogue.LEVERS,
        budget_s=budget_s,
        command="peakward run",
        obstacle=obstacle,
        to_command=lambda case: None,
    )
    budget = Budget(budget_s, clock=lambda: lab.now_s)
    lab.now_s = subject.begun_s
    study = investigate(
        asked,
        lab,
        lab,
        on_stage=lambda stage: on_stage(stage, lab),
        on_prediction=lambda floor, forecast, fitting: None,
        budget=budget,
    )
    return study, lab
