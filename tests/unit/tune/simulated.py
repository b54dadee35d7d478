"""An H200's laboratory in simulated seconds: what the parts of two stored runs took, and what levers gained.

The figures are those of two runs of 2026-11-23 on modules that nobody here wrote: nanoGPT's model at
12 × 1024 from fp32, and transformers' Llama-1B at 4 × 2048 from bf16. Where a run did not come to a
composition, it was measured by hand on the same device.
"""

from collections import Counter

import msgspec

from peakward.lab.measure.messages import Turn, TurnsTimed
from peakward.levers import catalogue
from peakward.records.case import AS_WRITTEN, ModuleCase, Workload
from peakward.records.errors import OutOfTimeError, PeakwardError
from peakward.records.lever import Foretold, NumericsVerdict
from peakward.records.measurement import CompileReport, Interval, Run
from peakward.tune import pipeline
from peakward.tune.investigation import Investigation
from peakward.tune.ledger import Budget
from peakward.tune.run import investigate

from .known_device import Device

RATES = {"fp32": 51e12, "tf32": 412e12, "bf16": 795e12, "bf16-mixed": 795e12, "fp16-mixed": 765e12}


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A module, and what its steps and the parts of a search take."""

    case: ModuleCase
    step_s: dict[str, float]
    """By precision, in eager mode with AdamW over lists."""
    predicted_s: dict[str, float]
    ratios: dict[tuple[str, str | bool], float]
    """What each other setting leaves of a step, in eager mode."""
    compiled: dict[tuple[str, str | bool], float]
    """The same on a compiled step, where it differs."""
    fails: frozenset[tuple[str, str | bool]] = frozenset()
    build_s: float
    compile_s: float
    """For the first time; a third of it where the kernels lie in the cache."""
    check_s: float
    """One computation in a check of numbers, beside compilation."""
    profile_s: float = 10.0
    start_s: float = 9.0
    begun_s: float
    """The module's first check and the ceilings, before the baseline."""


def module_case(source, batch_size, seq_len, **configuration):
    return ModuleCase(
        source=source,
        fingerprint="0" * 16,
        workload=Workload(batch_size=batch_size, seq_len=seq_len),
        configuration=msgspec.structs.replace(AS_WRITTEN, **configuration),
        device="cuda",
    )


NANOGPT = Subject(
    case=module_case("py:nanogpt:factory", 12, 1024),
    step_s={
        "fp32": 0.2345,
        "tf32": 0.0775,
        "bf16-mixed": 0.0338,
        "fp16-mixed": 0.0357,
        "bf16": 0.0267,
    },
    predicted_s={"fp32": 0.2242, "bf16-mixed": 0.0370, "bf16": 0.0258},
    ratios={
        ("optimizer", "adamw-fused"): 0.967,
        ("optimizer", "adamw-triton"): 0.972,
        ("cuda_graphs", True): 1.01,
        ("compile", "default"): 0.933,
    },
    compiled={("cuda_graphs", True): 0.9875},
    fails=frozenset({("norm", "fused")}),
    build_s=2.5,
    compile_s=13.0,
    check_s=4.0,
    begun_s=17.0,
)
LLAMA = Subject(
    case=module_case("hf:llama1b", 4, 2048, precision="bf16"),
    step_s={"tf32": 0.4907, "bf16-mixed": 0.2008, "fp16-mixed": 0.2065, "bf16": 0.1731},
    predicted_s={"bf16-mixed": 0.2189, "bf16": 0.1881},
    ratios={
        ("optimizer", "adamw-fused"): 0.948,
        ("optimizer", "adamw-triton"): 0.944,
        ("cuda_graphs", True): 1.15,
        ("compile", "default"): 0.806,
        ("norm", "fused"): 0.886,
        ("loss", "fused"): 0.949,
        ("attention", "sdpa"): 1.0042,
        ("attention", "sdpa-cudnn"): 1.0056,
        ("checkpointing", "every-block"): 1.21,
    },
    compiled={
        ("norm", "fused"): 1.0,
        ("loss", "fused"): 1.0,
        ("attention", "sdpa-cudnn"): 0.992,
    },
    build_s=1.8,
    compile_s=4.0,
    check_s=4.0,
    begun_s=20.0,
)


class Lab(Device):
    """Sweep, workers and store in one, by the clock `now_s`. On 16 cores, whose spare processes start beside
    what is not timed."""

    n_at_once = 8

    def __init__(self, studies, subject):
        super().__init__(studies, self.step_of)
        self.subject, self.now_s = subject, 0.0
        self.left_s = lambda: 1e9
        self.spares, self.attached, self.compiled = [], False, set()
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
        subject, settings = self.subject, case.configuration.settings
        step_s = subject.step_s[settings["precision"]]
        ratios = subject.ratios
        if settings.get("compile", "none") != "none":
            ratios = ratios | subject.compiled
        for pair in settings.items():
            step_s *= ratios.get(pair, 1.0)
        return step_s

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
            self.attached = False

    def _compiling_s(self, case):
        settings = case.configuration.settings
        if settings.get("compile", "none") == "none":
            return 0.0
        kernels = settings["precision"], settings["compile"]
        first = kernels not in self.compiled
        self.compiled.add(kernels)
        return self.subject.compile_s * (1.0 if first else 1 / 3)

    def measure(self, case, protocol):
        if (case, protocol) in self.measured:
            return self.measured[case, protocol]
        self._enter()
        self.counts["headline" if protocol.phases else "screening"] += 1
        settings = set(case.configuration.settings.items())
        self.screened.append(settings - set(self.subject.case.configuration.settings.items()))
        if settings & self.subject.fails:
            self.spend(self.subject.build_s)
            failed = self.studies.measurement(case, 1.0, peak_gib=10, wall_s=2.0, protocol=protocol)
            self.measured[case, protocol] = msgspec.structs.replace(
                failed, status="invalid", reason="no such norm", summary=None
            )
            return self.measured[case, protocol]
        step_s, compiling_s = self.step_of(case), self._compiling_s(case)
        warmup_s, timed_s = 10 * step_s, max(protocol.max_timed_s, 5 * step_s)
        wall_s = self.subject.build_s + warmup_s + timed_s + compiling_s
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
                    warmup_s=(warmup_s + compiling_s,),
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
            self.spend(self.subject.build_s + 3 * step_s + timed_s + self._compiling_s(case))
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
            self.subject.compile_s / 2
            for case in cases
            if case.configuration.settings.get("compile", "none") != "none"
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
    """What is predicted of eager steps in precisions that a capture sees, and the rates of products."""

    def __init__(self, subject):
        self._subject = subject

    def _predicted_s(self, case):
        settings = case.configuration.settings
        plain = msgspec.structs.replace(
            self._subject.case.configuration, precision=settings["precision"]
        )
        is_seen = case.configuration == plain
        return self._subject.predicted_s.get(settings["precision"]) if is_seen else None

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


def searched(studies, subject, budget_s, monkeypatch):
    """The study of a whole run of so many simulated seconds, and the laboratory that it was made in."""
    lab = Lab(studies, subject)
    monkeypatch.setattr(pipeline, "Expectations", lambda *_: Expectations(subject))

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
        on_stage=lambda stage: None,
        on_prediction=lambda floor, forecast, fitting: None,
        budget=budget,
    )
    return study, lab
