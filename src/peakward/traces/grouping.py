"""Groups of GPU work as records: by name, category and phase."""

from collections.abc import Callable

from peakward.records.profile import Group, WorkPhase
from peakward.traces.category_rules import Category
from peakward.traces.host_work import is_of_host
from peakward.traces.inductor import fused_ops
from peakward.traces.kernel_names import short_name
from peakward.traces.kernels import Groups, group
from peakward.traces.phase_names import PhaseCode
from peakward.traces.table import Codes, Table

_CATEGORIES = tuple(Category)
_PHASES: tuple[WorkPhase, ...] = ("forward", "backward", "optimizer", "other")
"""In the order of PhaseCode."""
assert [each.name.lower() for each in PhaseCode] == list(_PHASES)

Labels = tuple[str, str | None, WorkPhase | None]
"""Name, category and phase of a group."""


def by_name(table: Table, categories: Codes) -> tuple[Group, ...]:
    """A group for each name."""
    found = group(table.gpu.duration_ns, [table.gpu.name, categories])
    return _records(
        found,
        lambda key: (_shown(table, key[0]), _CATEGORIES[key[1]].value, None),
        lambda key: table.names[key[0]],
    )


def by_phase_and_name(table: Table, categories: Codes, phases: Codes) -> tuple[Group, ...]:
    """A group for each phase and name."""
    found = group(table.gpu.duration_ns, [phases, table.gpu.name, categories])
    return _records(
        found,
        lambda key: (
            _shown(table, key[1]),
            _CATEGORIES[key[2]].value,
            _PHASES[key[0]],
        ),
        lambda key: table.names[key[1]],
    )


def by_phase_and_category(table: Table, categories: Codes, phases: Codes) -> tuple[Group, ...]:
    """A group for each phase and category."""
    found = group(table.gpu.duration_ns, [phases, categories])
    return _records(
        found, lambda key: (_CATEGORIES[key[1]].value, _CATEGORIES[key[1]].value, _PHASES[key[0]])
    )


def by_phase(table: Table, phases: Codes) -> tuple[Group, ...]:
    """A group for each phase."""
    found = group(table.gpu.duration_ns, [phases])
    return _records(found, lambda key: (_PHASES[key[0]], None, _PHASES[key[0]]))


def _shown(table: Table, name: int) -> str:
    """A kernel's name without the compiler's additions. An operator's name is short and stays whole."""
    whole = table.names[name]
    return whole if is_of_host(table) else short_name(whole)


def _records(
    found: Groups,
    labels: Callable[[list[int]], Labels],
    full_name: Callable[[list[int]], str] | None = None,
) -> tuple[Group, ...]:
    columns = zip(
        found.keys.tolist(),
        found.instances.tolist(),
        found.total_ns.tolist(),
        found.share.tolist(),
        found.mean_ns.tolist(),
        found.median_ns.tolist(),
        found.min_ns.tolist(),
        found.max_ns.tolist(),
        found.std_ns.tolist(),
        strict=True,
    )
    groups = []
    for key, n, total, share, mean, median, least, most, std in columns:
        name, category, phase = labels(key)
        groups.append(
            Group(
                name=name,
                category=category,
                phase=phase,
                n=n,
                total_ns=total,
                share=share,
                mean_ns=mean,
                median_ns=median,
                min_ns=least,
                max_ns=most,
                std_ns=std,
                fused=() if full_name is None else fused_ops(full_name(key)),
            )
        )
    return tuple(groups)
