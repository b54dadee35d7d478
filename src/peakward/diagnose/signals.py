"""What a rule may see: stored records, each None where there is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from peakward.diagnose.loop_parts import loop_parts
from peakward.diagnose.time_parts import TimeParts, time_parts
from peakward.levers.catalogue import lacking, lever
from peakward.prediction.planning.site import Site
from peakward.records.case import Configuration, ConfiguredCase, ModelCase, ModuleCase
from peakward.records.case_memory import CaseMemory
from peakward.records.device import Accelerator, Device
from peakward.records.loop import LoopTimes
from peakward.records.measurement import Measurement
from peakward.records.plan import Forecast
from peakward.records.profile import HostWork, Idle, Job, Profile, Rank

LEAST_LOOP_STEPS = 20
"""A mean over fewer says little of a wait that comes once in eight steps, as that for several workers
does."""


@dataclass(frozen=True, kw_only=True)
class Signals:
    """All that is known of one case, or of one trace."""

    subject: str
    case: ModelCase | None = None
    module: ModuleCase | None = None
    """In its place a module of the user's, whose settings are known and whose shape is not."""
    measurement: Measurement | None = None
    profile: Profile | None = None
    n_steps: int | None = None
    """In the profile; None: as many as it marks itself."""
    memory: CaseMemory | None = None
    loop: LoopTimes | None = None
    """Of a live loop, of which the profile is a window."""
    site: Site | None = None
    """The catalogued device, by its calibration where there is one."""
    forecast: Forecast | None = None
    job: Job | None = None
    """The traces of several ranks side by side, of which the profile is one."""
    rank: Rank | None = None
    """The profile's among them."""
    explained: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the parts of the time that findings are about; the last rule alone is told."""

    @property
    def gpu(self) -> Profile | None:
        """A profile with GPU work in it."""
        profile = self.profile
        seen = profile is not None and not profile.is_of_host and profile.breakdown.span_ns
        return profile if seen else None

    @property
    def idle(self) -> Idle | None:
        """Why the GPU was idle."""
        return None if self.gpu is None else self.gpu.idle

    @property
    def watched(self) -> LoopTimes | None:
        """The loop's times, of steps enough to speak of."""
        loop = self.loop
        return loop if loop is not None and loop.n_steps >= LEAST_LOOP_STEPS else None

    @property
    def host(self) -> HostWork | None:
        """What the host was seen to call."""
        return None if self.profile is None else self.profile.host

    @property
    def device(self) -> Device | None:
        """The catalogued device."""
        return None if self.site is None else self.site.device

    @property
    def accelerator(self) -> Accelerator:
        """What is known of the GPU's kind: by the catalogue, by the trace itself, by the machine."""
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
        """Whether the lever of that name exists on this GPU."""
        return lacking(lever(name), self.accelerator) is None

    @property
    def configured(self) -> ConfiguredCase | None:
        """The case or the module."""
        return self.module if self.case is None else self.case

    @property
    def configuration(self) -> Configuration | None:
        """How it is carried out."""
        return None if self.configured is None else self.configured.configuration

    @property
    def steps(self) -> int | None:
        """Steps in the profile."""
        if self.n_steps is not None:
            return self.n_steps
        return None if self.profile is None else self.profile.n_steps

    @property
    def step_s(self) -> float | None:
        """The median of unprofiled steps."""
        summary = None if self.measurement is None else self.measurement.summary
        return None if summary is None else summary.median_s.estimate

    @property
    def limit_bytes(self) -> int | None:
        """Memory that the case may take: its own limit, or what the device has."""
        if self.configured is not None and self.configured.memory_limit_bytes is not None:
            return self.configured.memory_limit_bytes
        if self.site is not None:
            return self.site.limit_bytes(None)
        if self.measurement is None or self.measurement.environment.device_type != "cuda":
            return None
        return self.measurement.environment.device_memory_bytes

    @cached_property
    def time(self) -> TimeParts | None:
        """Where the step's time goes; None without a profile that saw any work, or a loop's steps."""
        if self.watched is not None:
            return loop_parts(self.profile, n_steps=self.steps, loop=self.watched)
        return time_parts(self.profile, n_steps=self.steps, step_s=self.step_s)
