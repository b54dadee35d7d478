"""Matrix products one by one: what stored profiles say each took, and what is predicted.

The profiles are of eager steps that studies stored; none of them is among the traces that the
constants were fitted to by name, but some are of the same sizes. A kernel's time ends with the
kernel, a predicted one with the next launch, about a microsecond later.
"""

import re
from collections.abc import Iterable
from statistics import median

from accuracy.groups import nine_in_ten
from accuracy.records import ProductGroup
from peakward.prediction.floor import compute_type
from peakward.prediction.time.device_model import DeviceModel
from peakward.records.case import ModelCase
from peakward.records.profile import CaseProfile, OperatorRate
from peakward.records.study import Study

Product = tuple[int, int, int, int]
"""m, n, k and the batch."""
PRODUCTS = ("aten::mm", "aten::bmm")


def products(found: Iterable[Study], on: DeviceModel) -> list[ProductGroup]:
    """Each operator and compute type: a shape counts once, with the median of its times."""
    kernel_s: dict[tuple[str, str], dict[Product, list[float]]] = {}
    for study in found:
        for profile in filter(eager, study.profiles):
            for each in profile.profile.operators:
                if each.name in PRODUCTS and each.flops:
                    key = (each.name, _type(profile))
                    shapes = kernel_s.setdefault(key, {})
                    shapes.setdefault(shape(each), []).append(each.kernel_ns / each.n / 1e9)
    return [_group(*key, shapes, on) for key, shapes in sorted(kernel_s.items())]


def ratios(profile: CaseProfile, on: DeviceModel) -> list[tuple[OperatorRate, float]]:
    """The products of one profile with their predicted time over the kernels', the longest first."""
    model = on.products[_type(profile)]
    found = [
        (each, model.time_s(*shape(each)) * each.n / (each.kernel_ns / 1e9))
        for each in profile.profile.operators
        if each.name in PRODUCTS and each.flops
    ]
    return sorted(found, key=lambda pair: -pair[0].kernel_ns)


def eager(profile: CaseProfile) -> bool:
    """Whether its operators ran one by one, as torch names them; compiled products may have more
    operands than two."""
    case = profile.case
    return (
        isinstance(case, ModelCase)
        and case.configuration.compile == "none"
        and not case.configuration.cuda_graphs
    )


def shape(rate: OperatorRate) -> Product:
    """Of a product whose dims read "2048×768, 768×2304", or with a batch before each."""
    a, b = ([int(size) for size in re.findall(r"\d+", part)] for part in rate.dims.split(","))
    return a[-2], b[-1], a[-1], a[0] if len(a) == 3 else 1


def _type(profile: CaseProfile) -> str:
    assert isinstance(profile.case, ModelCase)
    return compute_type(profile.case)


def _group(
    operator: str, kind: str, shapes: dict[Product, list[float]], on: DeviceModel
) -> ProductGroup:
    model = on.products[kind]
    errors = [model.time_s(*each) / median(found) - 1 for each, found in shapes.items()]
    sizes = [abs(each) for each in errors]
    return ProductGroup(
        operator=operator,
        compute_type=kind,
        n_shapes=len(errors),
        median=median(sizes),
        p90=nine_in_ten(sizes),
        bias=median(errors),
    )
