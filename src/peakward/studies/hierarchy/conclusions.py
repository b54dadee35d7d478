"""What the numbers of `hierarchy` say."""

from collections.abc import Sequence

from peakward.prediction.time.traffic_curve import N_TENSORS
from peakward.records.calibration import Calibration, Rates, TrafficRate
from peakward.records.device import Device
from peakward.records.study import Conclusion
from peakward.studies.hierarchy.levels import MEMORY, Level, fits_into, last_cache
from peakward.studies.hierarchy.moves import Route, Tensor
from peakward.studies.parts import evidence, say

SLOWER = 2.0
"""Times the least latency of a level from which on a working set does not behave as if it lay there."""


def descent(levels: Sequence[Level], of: Calibration) -> tuple[Conclusion, ...]:
    """Rate and latency from the nearest level of memory to the furthest."""
    own = [each for each in levels if each.ends is None]
    if len(own) < 2:
        return ()
    texts, fields = [], {}
    for i, each in enumerate(own):
        fields[f"rate{i}"] = evidence(f"rate, {each.name}", each.bytes_per_s, "bytes_per_s", of)
        texts.append(f"{each.name} {{rate{i}}}")
        if each.latency_s is not None:
            fields[f"load{i}"] = evidence(f"latency, {each.name}", each.latency_s, "s", of)
            texts[-1] += f" at {{load{i}}} a load"
    near, far = own[0], own[-1]
    fields["slower"] = evidence(
        "rates, first over last", near.bytes_per_s / far.bytes_per_s, "ratio", of
    )
    text = "Reading: " + ", ".join(texts) + f"; {near.name} is {{slower}} as fast as {far.name}"
    if near.latency_s is not None and far.latency_s is not None:
        later = far.latency_s / near.latency_s
        fields["later"] = evidence("latencies, last over first", later, "ratio", of)
        text += ", whose loads take {later} the time"
    return (say(text + ".", **fields),)


def in_flight(levels: Sequence[Level], of: Calibration) -> tuple[Conclusion, ...]:
    """Bytes that must be on their way at once: rate times latency (Little's law)."""
    memory = next((each for each in levels if each.name == MEMORY), None)
    if memory is None or memory.latency_s is None:
        return ()
    return (
        say(
            "To read memory at {rate} with loads of {latency}, {bytes} must be on their way at once.",
            rate=evidence("rate", memory.bytes_per_s, "bytes_per_s", of),
            latency=evidence("latency", memory.latency_s, "s", of),
            bytes=evidence("rate × latency", memory.bytes_per_s * memory.latency_s, "bytes", of),
        ),
    )


def reach(rates: Rates, of: Calibration) -> tuple[Conclusion, ...]:
    """Of each cache, the working set from which on loads take far longer, though it should hold it."""
    said = []
    capacity = {each.level: each.capacity_bytes for each in rates.levels}
    for level in dict.fromkeys(each.level for each in rates.latency if each.level is not None):
        own = [each for each in rates.latency if each.level == level]
        least = min(own, key=lambda each: each.load_s)
        late = [each for each in own if each.load_s >= SLOWER * least.load_s]
        holds = capacity.get(level)
        if late and holds is not None:
            first = min(late, key=lambda each: each.working_set_bytes)
            said.append(
                say(
                    "{level} is said to hold {holds}, but a load from a working set of {late} takes "
                    "{times} what one of {early} takes, {load}.",
                    level=level,
                    holds=evidence("capacity", holds, "bytes", of),
                    late=evidence("slow working set", first.working_set_bytes, "bytes", of),
                    times=evidence("latencies", first.load_s / least.load_s, "ratio", of),
                    early=evidence("quick working set", least.working_set_bytes, "bytes", of),
                    load=evidence("latency", least.load_s, "s", of),
                )
            )
    return tuple(said)


def copies(rates: Rates, of: Calibration) -> tuple[Conclusion, ...]:
    """The rate of copies that reach memory and the size from which on half of it is reached; then the
    highest rate of a copy, where the last cache could hold its tensors."""
    known = sorted(
        (each for each in rates.traffic if each.operation == "copy"),
        key=lambda each: each.size_bytes,
    )
    in_memory = [each for each in known if _fits_into(rates, each) == MEMORY]
    if len(known) < 2 or not in_memory:
        return ()
    full = max(in_memory, key=lambda each: each.bytes_per_s)
    best = max(known, key=lambda each: each.bytes_per_s)
    said = (_half_rate(known, full, of),)
    return said if _fits_into(rates, best) == MEMORY else (*said, _highest(best, rates, of))


def _fits_into(rates: Rates, copy: TrafficRate) -> str | None:
    return fits_into(rates, N_TENSORS["copy"] * copy.size_bytes)


def _half_rate(known: Sequence[TrafficRate], full: TrafficRate, of: Calibration) -> Conclusion:
    half = next(each for each in known if 2 * each.bytes_per_s >= full.bytes_per_s)
    text = "Even the smallest, of {least}, are copied at {share} of it."
    fields = {}
    if half is not known[0]:
        text = (
            "The smallest tensors that are copied at half of that or more are of {half}; those of {least} "
            "are copied at {share} of it."
        )
        fields = {"half": evidence("smallest of half the rate", half.size_bytes, "bytes", of)}
    return say(
        "Copies out of memory and back reach {rate}, at tensors of {size}. " + text,
        rate=evidence("best rate in memory", full.bytes_per_s, "bytes_per_s", of),
        size=evidence("size of the best rate in memory", full.size_bytes, "bytes", of),
        least=evidence("smallest size", known[0].size_bytes, "bytes", of),
        share=evidence(
            "rate of the smallest", known[0].bytes_per_s / full.bytes_per_s, "share", of
        ),
        **fields,
    )


def _highest(best: TrafficRate, rates: Rates, of: Calibration) -> Conclusion:
    """The rate of a cache, or of a cache in part."""
    both = N_TENSORS["copy"] * best.size_bytes
    cache = last_cache(rates)
    why, fields = "of which a cache may hold a part", {}
    if cache is not None and both <= cache[1]:
        why = f"which {cache[0]} can hold ({{holds}})"
        fields = {"holds": evidence(f"capacity of {cache[0]}", cache[1], "bytes", of)}
    return say(
        "The highest rate of a copy, {rate}, is not memory's: its two tensors of {size} take {both} "
        "together, " + why + ".",
        rate=evidence("highest rate", best.bytes_per_s, "bytes_per_s", of),
        size=evidence("size of the highest rate", best.size_bytes, "bytes", of),
        both=evidence("both tensors", both, "bytes", of),
        **fields,
    )


def ways(routes: Sequence[Route], tensor: Tensor, of: Calibration) -> tuple[Conclusion, ...]:
    """The quickest and the slowest way of a tensor, and all between."""
    known = [(route, time_s) for route in routes if (time_s := route.time_s(tensor)) is not None]
    if len(known) < 2:
        return ()
    known.sort(key=lambda pair: pair[1])
    texts, fields = [], {}
    for i, (route, time_s) in enumerate(known):
        texts.append(f"{route.name} {{time{i}}}")
        fields[f"time{i}"] = evidence(route.name, time_s, "s", of)
    return (
        say(
            "{tensor} ({size}): " + ", ".join(texts) + "; the last takes {times} the first.",
            tensor=tensor.name[0].upper() + tensor.name[1:],
            size=evidence("size", tensor.size_bytes, "bytes", of),
            times=evidence("slowest over quickest", known[-1][1] / known[0][1], "ratio", of),
            **fields,
        ),
    )


def against_datasheet(
    levels: Sequence[Level], of: Calibration, device: Device | None
) -> tuple[Conclusion, ...]:
    """The share of the datasheet's figure, of every level that has one."""
    texts, fields = [], {}
    for i, each in enumerate(levels):
        if each.share is None or each.stated_bytes_per_s is None:
            continue
        texts.append(f"{each.name} {{share{i}}} of {{stated{i}}}")
        fields[f"share{i}"] = evidence(f"share, {each.name}", each.share, "share", of, device)
        fields[f"stated{i}"] = evidence(
            f"datasheet, {each.name}", each.stated_bytes_per_s, "bytes_per_s", device
        )
    return (say("Of the datasheet: " + ", ".join(texts) + ".", **fields),) if texts else ()
