"""The machine and the software on which something was measured."""

import hashlib

import msgspec


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device and the software. A field is None where the thing does not exist or could not be read."""

    device_type: str
    device_name: str
    """As the driver or /proc/cpuinfo gives it."""
    device_memory_bytes: int
    """The GPU's memory, or the machine's RAM (the control group's limit where that is lower)."""
    device_uuid: str | None = None
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    n_cores: int
    """Cores that this process may use."""
    torch: str | None = None
    triton: str | None = None
    python: str
    system: str
    """Operating system and kernel release."""
    peakward: str
    lever_packages: tuple[str, ...] = ()
    """The packages that bring levers, with their versions."""

    @property
    def key(self) -> str:
        """A key that is equal for runs that may stand in one table: all fields but the unit and Peakward's
        version.

        The unit's UUID is left out, so that a sweep can resume on another card of the same model.
        """
        same = msgspec.structs.replace(self, device_uuid=None, peakward="")
        content = msgspec.to_builtins(same)
        if not self.lever_packages:
            del content["lever_packages"]  # As in every key from before there were any.
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]
