"""Writes the compute capabilities of NVIDIA's GPUs."""


def spell(capability: tuple[int, int] | None) -> str:
    """A compute capability as NVIDIA writes it: 8.9."""
    return "unknown" if capability is None else ".".join(map(str, capability))
