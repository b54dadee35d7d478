"""The input of a rule, stored records that may be None, and its answer before it is ranked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from peakward.diagnose.time_parts import TimeParts, loop_parts, time_parts
from peakward.levers.catalogue import lacking, lever
from peakward.prediction.planning.site import Site
from peakward.records.case import Configuration, ConfiguredCase, ModelCase, ModuleCase
from peakward.records.device import Accelerator, Device
from peakward.records.finding import Abstention, FindingEvidence, Quantity
from peakward.records.loop import LoopTimes
from peakward.records.measurement import Measurement
from peakward.records.memory import CaseMemory
from peakward.records.plan import Forecast
from peakward.records.profile import HostWork, Idle, Job, Profile, Rank
from peakward.stats.summary import typical_s

LEAST_LOOP_STEPS = 20
"""The fewest steps whose mean is judged. With several workers a wait for data comes once in eight
steps, and a mean of fewer steps does not show it."""


@dataclass(frozen=True, kw_only=True)
class DiagnosisInput:
    """All that is known of one case, or of one trace."""

    subject: str
    case: ModelCase | None = None
    module: ModuleCase | None = None
    """A user's module in place of a case. Its settings are known and its shape is not."""
    measurement: Measurement | None = None
    profile: Profile | None = None
    n_steps: int | None = None
    """The number of steps in the profile; None means the number that the profile itself marks."""
    memory: CaseMemory | None = None
    loop: LoopTimes | None = None
    """The times of a live loop; the profile is then a window of it."""
    site: Site | None = None
    """The catalogued device, with its calibration where there is one."""
    forecast: Forecast | None = None
    job: Job | None = None
    """The traces of several ranks side by side; the profile is one of them."""
    rank: Rank | None = None
    """The rank of the profile."""
    explained: Mapping[str, float] = field(default_factory=dict)
    """The seconds that the other findings explain, by part of the time. Only the last rule is given
    them."""

    @property
    def gpu(self) -> Profile | None:
        """The profile, if it has GPU work."""
        profile = self.profile
        seen = profile is not None and not profile.is_of_host and profile.breakdown.span_ns
        return profile if seen else None

    @property
    def idle(self) -> Idle | None:
        """Why the GPU was idle."""
        return None if self.gpu is None else self.gpu.idle

    @property
    def watched(self) -> LoopTimes | None:
        """The loop's times, if it has enough steps to judge."""
        loop = self.loop
        return loop if loop is not None and loop.n_steps >= LEAST_LOOP_STEPS else None

    @property
    def host(self) -> HostWork | None:
        """The host's calls that the profile recorded."""
        return None if self.profile is None else self.profile.host

    @property
    def device(self) -> Device | None:
        """The catalogued device."""
        return None if self.site is None else self.site.device

    @property
    def accelerator(self) -> Accelerator:
        """The kind of GPU, from the catalogue, else from the trace, else from the measured machine."""
        if self.device is not None:
            return self.device.accelerator
        if self.profile is not None and self.profile.accelerator is not None:
            return self.profile.accelerator
        made = self.measurement
        stated = None if made is None else made.environment.compute_capability
        if stated is None:
            return Accelerator()
        major, _, minor = stated.partition(".")
        return Accelerator(vendor="nvidia", compute_capability=(int(major), int(minor)))

    def has(self, name: str) -> bool:
        """Whether the named lever exists on this GPU."""
        return lacking(lever(name), self.accelerator) is None

    @property
    def configured(self) -> ConfiguredCase | None:
        """The case or the module."""
        return self.module if self.case is None else self.case

    @property
    def configuration(self) -> Configuration | None:
        """The configuration of the case or the module."""
        return None if self.configured is None else self.configured.configuration

    @property
    def steps(self) -> int | None:
        """The number of steps in the profile."""
        if self.n_steps is not None:
            return self.n_steps
        return None if self.profile is None else self.profile.n_steps

    @property
    def step_s(self) -> float | None:
        """The time of an unprofiled step (`stats.summary.typical_s`)."""
        found = None if self.measurement is None else typical_s(self.measurement)
        return None if found is None else found.estimate

    @property
    def limit_bytes(self) -> int | None:
        """The memory that the case may take: its own limit, else the device's memory."""
        if self.configured is not None and self.configured.memory_limit_bytes is not None:
            return self.configured.memory_limit_bytes
        if self.site is not None:
            return self.site.limit_bytes(None)
        if self.measurement is None or self.measurement.environment.device_type != "cuda":
            return None
        return self.measurement.environment.device_memory_bytes

    @cached_property
    def time(self) -> TimeParts | None:
        """The parts of the step's time; None without recorded work and without the steps of a loop."""
        if self.watched is not None:
            return loop_parts(self.profile, n_steps=self.steps, loop=self.watched)
        return time_parts(self.profile, n_steps=self.steps, step_s=self.step_s)


class Symptom(NamedTuple):
    """A fault that a rule saw."""

    cause: str
    evidence: tuple[FindingEvidence, ...]
    advice: str
    levers: tuple[str, ...] = ()
    """The names of levers that may help; levers that do not apply to the case are left out later."""
    parts: Mapping[str, float] = {}
    """The seconds that the symptom is about, by part of `time_parts`."""
    is_all: bool = True
    """Whether the levers can take away no more than `parts`, so that Amdahl's bound follows."""
    held_back_bytes: int | None = None
    share: float | None = None
    """The share of the whole, where it does not follow from `parts`."""
    title: str | None = None
    """The title of the finding, where the rule's own cannot say what was found."""
    is_limit: bool = False
    """Whether nothing is lost and the symptom only says where the time goes; it is ranked after all
    others."""


Verdict = Symptom | Abstention | None
"""None means that the rule judged and found nothing."""
WORTH_SHARE = 0.03
"""The smallest share of the whole time that is worth a finding. Less would at best make the step 1.03
times as fast, which is seldom worth a change of the program and near the smallest difference that three
processes can tell."""


def number(name: str, value: float, unit: Quantity, stored: str) -> FindingEvidence:
    """A piece of evidence."""
    return FindingEvidence(name=name, value=float(value), unit=unit, stored=stored)


def absent(**given: object) -> tuple[str, ...]:
    """The names of those inputs that are None."""
    return tuple(f"a {name}" for name, signal in given.items() if signal is None)


def abstain(code: str, *missing: str) -> Abstention:
    """An abstention that names the missing inputs."""
    return Abstention(code=code, missing=missing)
