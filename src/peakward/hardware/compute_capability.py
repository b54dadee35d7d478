"""Compute capabilities of NVIDIA's GPUs in words."""


def spell(capability: tuple[int, int] | None) -> str:
    """As NVIDIA writes it: 8.9."""
    return "unknown" if capability is None else ".".join(map(str, capability))
