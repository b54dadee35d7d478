"""Every rule, in the order of its code."""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from peakward.diagnose.rules import (
    activations,
    allocator_calls,
    at_the_roof,
    awkward_sizes,
    casts,
    data_loading,
    decode_bandwidth,
    exposed_communication,
    fragmentation,
    garbage_collection,
    graph_breaks,
    host_copies,
    late_rank,
    launch_bound,
    layout_copies,
    loop_collections,
    loop_pauses,
    loop_waits,
    memory_bound,
    naive_attention,
    no_tensor_cores,
    out_of_memory,
    padding,
    python_overhead,
    recomputed_generation,
    slow_backend,
    synchronisation,
    throttled_clock,
    tiny_kernels,
    unexplained_time,
    unfused_optimizer,
    unstable_numbers,
)
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import Verdict

PARTS = ("Sees", "Costs", "Example", "Lever", "Wrong when")
"""Of a rule's docstring, in order, after its title."""


class Rule(NamedTuple):
    """One file of `rules/`."""

    code: str
    title: str
    """What a finding of it claims."""
    told: dict[str, str]
    """By each of PARTS."""
    judge: Callable[[Signals], Verdict]


def _rule(module: ModuleType) -> Rule:
    title, _, rest = (module.__doc__ or "").strip().partition("\n\n")
    told: dict[str, str] = {}
    for line in rest.splitlines():
        name = next((each for each in PARTS if line.startswith(f"{each}: ")), None)
        if name is not None:
            told[name] = line.removeprefix(f"{name}: ")
        elif told:
            told[list(told)[-1]] += f" {line}"
    return Rule(module.CODE, title, told, module.judge)


_ORDER = (
    data_loading, launch_bound, python_overhead, synchronisation, host_copies, garbage_collection,
    graph_breaks, tiny_kernels, out_of_memory, activations, allocator_calls, fragmentation, memory_bound,
    layout_copies, unfused_optimizer, padding, no_tensor_cores, at_the_roof, casts, awkward_sizes,
    naive_attention, slow_backend, exposed_communication, late_rank, recomputed_generation, decode_bandwidth,
    unstable_numbers, throttled_clock, loop_waits, loop_collections, loop_pauses, unexplained_time,
)  # fmt: skip
RULES: tuple[Rule, ...] = tuple(_rule(each) for each in _ORDER)
"""The last is judged last, by what the others leave."""
