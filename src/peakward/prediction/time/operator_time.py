"""The device's time for one call of an operator, from what it computes and moves."""

import math
from typing import Literal, NamedTuple

from peakward.hardware.devices import CAPABILITIES
from peakward.prediction.flops import attended_pairs
from peakward.prediction.operators.tape import BFLOAT, FLOAT
from peakward.prediction.time import kernels, special_operators
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.kernels import KERNELS, Kernel, relative_time
from peakward.prediction.time.products import SPLIT_FROM, TF32_TRANSPOSED_SLOWDOWN
from peakward.prediction.time.row_operators import row_time
from peakward.prediction.time.setting import Setting
from peakward.prediction.time.special_operators import fused_s, loss_time, product_time
from peakward.records.calibration import AttentionPass
from peakward.records.op_graph import ITEM_BYTES, Operand, Operator

_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_TYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


class OperatorCost(NamedTuple):
    """The cost of one call."""

    device_s: float | None
    """From its launch to the next; None where the device's rate in its type is unknown."""
    n_launches: float
    bound: Literal["compute", "memory", "launch"]


def cost(operator: Operator, setting: Setting, on: DeviceModel) -> OperatorCost:
    """The cost of an operator of such a step, as torch's kernels carry it out on a GPU."""
    name = operator.name.removeprefix("aten.")
    if name in _PRODUCTS or name == "_scaled_mm":
        return _product(operator, setting, on)
    if name == "_grouped_mm":
        return _grouped_product(operator, on)
    if name.startswith("_scaled_dot_product_"):
        return _attention(operator, on)
    if name in kernels.ATTENTION:
        return _own_attention(operator, setting, on)
    if name in kernels.LINEAR_LOSS:
        return _linear_loss(operator, setting, on)
    if name in kernels.QUANTISED:
        return _quantised_product(operator, on)
    if operator.flops and name not in kernels.PASSES:
        raise ValueError(f"expected a product or attention, got {operator.name} with FLOPs")
    if operator.fused:
        device_s, n_launches = fused_s(operator, on), 1.0
    else:
        device_s, n_launches = _pass(name, operator, setting, on)
    launch_bound = device_s < 2 * n_launches * on.traffic.launch_s
    return OperatorCost(device_s, n_launches, "launch" if launch_bound else "memory")


def _product(operator: Operator, setting: Setting, on: DeviceModel) -> OperatorCost:
    name = operator.name.removeprefix("aten.")
    a, b = operator.inputs[-2:] if name != "_scaled_mm" else operator.inputs[:2]
    kind = _TYPES.get(a.dtype, a.dtype)
    if kind == "fp32" and setting.tf32:
        kind = "tf32"
    model = on.products.get(kind)
    if model is None:
        return OperatorCost(None, kernels.PRODUCT_LAUNCHES, "compute")
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    batched = len(a.shape) == 3
    batch = a.shape[0] if batched else 1
    # A weight's gradient sums over tokens, whose rows lie apart in both operands.
    sums_tokens = operator.phase == "backward" and k in setting.n_rows
    splits = batched or sums_tokens or (k >= SPLIT_FROM and name == "mm")
    compute_s = model.compute_s(m, n, k, batch, splits=splits)
    memory_s = model.memory_s(m, n, k, batch)
    # Of a linear layer's matrices, however it multiplies them, tokens are the rows: their number is
    # no row's length. So 1 × 100 tokens are not slow in 16 bits, and a head 50,257 wide is. Nor is
    # the number of queries in the forward pass, or one query would be slow.
    rows_are_tokens = operator.phase == "forward" or (not batched and m in setting.n_rows)
    row_lengths = (n, k) if rows_are_tokens else (m, n, k) if batched else (m, n)
    compute_s *= model.slowdown(*row_lengths, forward=operator.phase == "forward")
    if kind == "tf32" and operator.phase == "backward" and k in setting.n_rows:
        compute_s *= TF32_TRANSPOSED_SLOWDOWN
    bound: Literal["compute", "memory", "launch"] = "compute" if compute_s > memory_s else "memory"
    start_s = model.opening_s(m)
    if start_s > max(compute_s, memory_s):
        bound = "launch"
    seconds, n_launches = start_s + max(compute_s, memory_s), kernels.PRODUCT_LAUNCHES
    if name == "baddbmm":
        (result,) = operator.outputs
        memory_s += result.n_bytes / model.bytes_per_s  # What it adds to is read there.
        seconds = start_s + max(compute_s, memory_s) + _copied_s(operator.inputs[0], result, on)
        n_launches += 1
    return OperatorCost(seconds, n_launches, bound)


def _copied_s(given: Operand, result: Operand, on: DeviceModel) -> float:
    """Seconds to write a tensor, which may be broadcast, to another."""
    moved_s = on.traffic.time_s(given.n_bytes + result.n_bytes)
    if given.shape == result.shape:
        return moved_s
    elements_s = _elements_s(result.n_elements, on, kernels.ELEMENTS_PER_SM_S)
    return max(moved_s, on.traffic.launch_s + elements_s)


def _grouped_product(operator: Operator, on: DeviceModel) -> OperatorCost:
    model = on.products.get("bf16")
    in_one_kernel = on.compute_capability[0] in CAPABILITIES
    if model is None or operator.inputs[0].dtype != BFLOAT or not in_one_kernel:
        # Elsewhere this operator is itself a loop in which the host waits: its time is not known.
        return OperatorCost(None, special_operators.LAUNCHES, "compute")
    found = special_operators.groups(operator)
    compute_s = special_operators.compute_s(found, model, on.compute_capability)
    compute_s *= special_operators.slowdown(operator)
    memory_s = (operator.bytes_read + operator.bytes_written) / model.bytes_per_s
    start_s = on.traffic.launch_s + model.start_s
    bound: Literal["compute", "memory", "launch"] = "compute" if compute_s > memory_s else "memory"
    if start_s > max(compute_s, memory_s):
        bound = "launch"
    return OperatorCost(start_s + max(compute_s, memory_s), special_operators.LAUNCHES, bound)


def _linear_loss(operator: Operator, setting: Setting, on: DeviceModel) -> OperatorCost:
    """In tf32 where cuBLAS multiplies, as the recomputed loss's own kernels do not."""
    dtype = operator.inputs[0].dtype
    kind = _TYPES.get(dtype, dtype)
    if kind == "fp32" and setting.tf32 and "recomputed" not in operator.name:
        kind = "tf32"
    model = on.products.get(kind)
    if model is None:
        return OperatorCost(None, 1.0, "compute")
    return OperatorCost(*loss_time(operator, model, on))


def _quantised_product(operator: Operator, on: DeviceModel) -> OperatorCost:
    dtype = operator.inputs[0].dtype
    model = on.products.get(_TYPES.get(dtype, dtype))
    if model is None or dtype == FLOAT:  # Of which the kernel's rate was never looked at.
        return OperatorCost(None, 1.0, "memory")
    return OperatorCost(*product_time(operator, model, on))


def _attention(operator: Operator, on: DeviceModel) -> OperatorCost:
    q, k = _queries_and_keys(operator)
    seen = 0.5 if operator.causal and q.shape[-2] == k.shape[-2] else 1.0
    kernel, pass_ = _torchs_kernel(operator.name), _pass_of(operator)
    beside = _beside_calibrated(operator, kernel, on)
    n_launches = kernels.ATTENTION_LAUNCHES[pass_]
    moved = operator.bytes_read + operator.bytes_written
    found = _attended(operator, on, seen * beside, moved, n_launches)
    if found.device_s is None:
        return found
    least_s = on.traffic.launch_s + beside * _longest_blocks_s(operator, kernel, on)
    n_scores = seen * math.prod(q.shape[:-1]) * k.shape[-2]
    dropped_s = _elements_s(n_scores, on, kernels.DROPPED_PER_SM_S) if operator.drops else 0.0
    shared_s = _summed_over_heads_s(q, k, on) if pass_ == "backward" else 0.0
    return found._replace(device_s=max(found.device_s, least_s) + dropped_s + shared_s)


def _longest_blocks_s(operator: Operator, kernel: str, on: DeviceModel) -> float:
    """Seconds of the blocks that see all keys, on the multiprocessor that has the most of them."""
    q, _ = _queries_and_keys(operator)
    block = kernels.ATTENTION_BLOCKS.get(kernel)
    model = on.attention.get((_TYPES.get(q.dtype, q.dtype), _pass_of(operator)))
    if block is None or model is None:
        return 0.0
    n_blocks = max(1, math.prod(q.shape[:-2]) * math.ceil(q.shape[-2] / block.rows))
    flops = operator.flops * _model_share(operator) / n_blocks
    at_once = min(block.at_once, math.ceil(n_blocks / on.n_sms))
    return at_once * flops * model.flop_s * on.n_sms


def _summed_over_heads_s(q: Operand, k: Operand, on: DeviceModel) -> float:
    """Seconds to add up the gradients of keys and of values that several heads of queries share: two kernels,
    each of 6.5 µs for 8.4 MB of 16 heads that share one (cuDNN, H200), told 4.3."""
    if q.shape[1] == k.shape[1]:
        return 0.0
    of_each_head = q.shape[1] * k.n_bytes // k.shape[1]
    return 2 * on.traffic.time_s(of_each_head + k.n_bytes)


def _model_share(operator: Operator) -> float:
    """The share of model FLOPs: the record also counts the scores that a backward pass makes anew."""
    return 4 / 5 if _pass_of(operator) == "backward" else 1.0


def _own_attention(operator: Operator, setting: Setting, on: DeviceModel) -> OperatorCost:
    """Peakward's: of a window the keys beyond are skipped, which torch's kernels mask."""
    q, k = _queries_and_keys(operator)
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    seen = 1.0  # Of one query over a cache, which gives what is in reach.
    if operator.causal and n_queries == n_keys:
        seen = attended_pairs(n_queries, window=setting.window) / (n_queries * n_keys)
    share = seen * _beside_calibrated(operator, kernels.attention_kernel(operator, setting), on)
    n_launches = kernels.OWN_ATTENTION_LAUNCHES[_pass_of(operator)]
    moved: float = kernels.attention_bytes(operator)
    if of_cache := kernels.cache_share(operator, on.compute_capability):
        moved /= of_cache
    return _attended(operator, on, share, moved, n_launches)


def _attended(
    operator: Operator, on: DeviceModel, share: float, moved_bytes: float, n_launches: float
) -> OperatorCost:
    """The cost of a share of the score matrix, at the calibrated kernel's rate. The record counts every
    product of the kernel over all of it; a rate is of model FLOPs, without the scores made anew."""
    pass_, (q, k) = _pass_of(operator), _queries_and_keys(operator)
    model = on.attention.get((_TYPES.get(q.dtype, q.dtype), pass_))
    if model is None:
        return OperatorCost(None, n_launches, "compute")
    flops = operator.flops * share * _model_share(operator)
    # A kernel goes along the keys of each block of queries: it is their number that fills its pipeline.
    compute_s = model.time_s(flops, k.shape[-2])
    memory_s = on.traffic.time_s(moved_bytes)
    bound: Literal["compute", "memory"] = "compute" if compute_s > memory_s else "memory"
    return OperatorCost(max(compute_s, memory_s) + on.traffic.launch_s, n_launches, bound)


def _torchs_kernel(name: str) -> str:
    """Its name in `attention_kernels`."""
    return name.removeprefix("aten._scaled_dot_product_").split("_")[0]


def _beside_calibrated(operator: Operator, kernel: str, on: DeviceModel) -> float:
    """1 where that kernel was never timed beside the calibrated one."""
    q, _ = _queries_and_keys(operator)
    size, pass_ = ITEM_BYTES[q.dtype], _pass_of(operator)
    found = relative_time(kernel, pass_, q.shape[-1], size, on.compute_capability)
    return 1.0 if found is None else found


def _pass_of(operator: Operator) -> AttentionPass:
    return "backward" if "backward" in operator.name else "forward"


def _queries_and_keys(operator: Operator) -> tuple[Operand, Operand]:
    first = 1 if _pass_of(operator) == "backward" else 0
    return operator.inputs[first], operator.inputs[first + 1]


def _pass(name: str, operator: Operator, setting: Setting, on: DeviceModel) -> tuple[float, float]:
    """Seconds and launches of what is bound by memory."""
    moved = operator.bytes_read + operator.bytes_written
    if name.startswith("_foreach_"):
        return _foreach(operator, setting, on)
    if name in ("masked_fill", "masked_fill_"):
        return _masked_fill(name, operator.outputs[0], on)
    if name == "_safe_softmax":
        return _safe_softmax(operator, on)
    if name == "clone":
        return _scattered_s(operator, on, kernels.ELEMENTS_PER_SM_S), 1.0
    if name == "cat" and _joins_short_rows(operator, setting):
        elements = _n_elements(operator)
        return on.traffic.launch_s / 2 + _elements_s(
            elements, on, kernels.JOINED_ELEMENTS_PER_SM_S
        ), 1.0
    if name == "_to_copy" and _widens(operator):
        widened_s = on.traffic.launch_s + _elements_s(
            _n_elements(operator), on, kernels.ELEMENTS_PER_SM_S
        )
        return max(on.traffic.slowed_s(kernels.WIDENING, moved), widened_s), 1.0
    of_rows = row_time(name, operator, on)
    if of_rows is not None:
        return of_rows
    kernel = _kernel(name, operator)
    if kernel is None:
        return _elementwise_s(operator, setting, on), 1.0
    return kernel.factor * on.traffic.time_s(moved) + kernel.start_s, kernel.n_launches


def _kernel(name: str, operator: Operator) -> Kernel | None:
    found = KERNELS.get(name) or kernels.PASSES.get(name)
    if name in kernels.LONG_ROW_FACTORS and operator.inputs[0].shape[-1] > kernels.LONG_ROW:
        return Kernel(kernels.LONG_ROW_FACTORS[name])
    if name == "sum" and not _sums_over_rows(operator):
        return None
    return found


def _sums_over_rows(operator: Operator) -> bool:
    """Whether it sums a matrix over its rows, as a bias's gradient does, not along each row."""
    given = operator.inputs[0].shape
    return len(given) == 2 and all(each.shape != (given[0], 1) for each in operator.outputs)


def _elementwise_s(operator: Operator, setting: Setting, on: DeviceModel) -> float:
    moved = operator.bytes_read + operator.bytes_written
    vectorised_s = on.traffic.time_s(moved)
    mixed = len({each.dtype for each in operator.inputs if each.n_elements > 1}) > 1
    share = setting.scattered_share(operator)
    if mixed and share == 0:
        elements_s = _elements_s(_n_elements(operator), on, kernels.ELEMENTS_PER_SM_S)
        widened_s = on.traffic.slowed_s(kernels.WIDENING, moved)
        return max(widened_s, on.traffic.launch_s + elements_s)
    rate = kernels.WIDENED_ELEMENTS_PER_SM_S if mixed else kernels.ELEMENTS_PER_SM_S
    return share * _scattered_s(operator, on, rate) + (1 - share) * vectorised_s


def _scattered_s(operator: Operator, on: DeviceModel, elements_per_sm_s: float) -> float:
    moved = operator.bytes_read + operator.bytes_written
    elements_s = _elements_s(_n_elements(operator), on, elements_per_sm_s)
    moved_s = on.traffic.slowed_s(kernels.SCATTERED, moved)
    return max(moved_s, on.traffic.launch_s + elements_s)


def _elements_s(n_elements: float, on: DeviceModel, elements_per_sm_s: float) -> float:
    return n_elements / (on.n_sms * elements_per_sm_s)


def _foreach(operator: Operator, setting: Setting, on: DeviceModel) -> tuple[float, float]:
    n_tensors = sum(each.count for each in operator.outputs)
    n_blocks = sum(_n_chunks(each) for each in operator.outputs)
    n_launches = max(
        1.0,
        n_tensors / kernels.FOREACH_TENSORS_A_LAUNCH,
        n_blocks / kernels.FOREACH_BLOCKS_A_LAUNCH,
    )
    if all(not each.shape for each in operator.outputs):
        # Step counts and what is made of them: on the host, unless a graph or a kernel needs them.
        if setting.counts_steps_on_host:
            return 0.0, 0.0
        return n_launches * on.traffic.launch_s, n_launches
    if any(not each.shape for each in operator.inputs):
        return _one_by_one(operator, on), n_tensors
    item_bytes = max(ITEM_BYTES[each.dtype] for each in operator.outputs)
    factor = kernels.FOREACH.get(item_bytes, max(kernels.FOREACH.values()))
    moved = operator.bytes_read + operator.bytes_written
    n_elements = sum(each.n_elements for each in operator.outputs)
    elements_s = _elements_s(n_elements, on, kernels.FOREACH_ELEMENTS_PER_SM_S)
    return max(factor * on.traffic.time_s(moved), elements_s), n_launches


def _n_chunks(each: Operand) -> int:
    """Blocks of threads that go through these tensors."""
    return each.count * math.ceil(each.n_elements / each.count / kernels.FOREACH_BLOCK)


def _one_by_one(operator: Operator, on: DeviceModel) -> float:
    """Lists whose tensors differ in shape: torch takes each pair by itself, and broadcasts."""
    seconds = 0.0
    for each in operator.outputs:
        copy_s = kernels.SCATTERED * on.traffic.time_s(2 * each.n_bytes / each.count)
        elements_s = _elements_s(each.n_elements // each.count, on, kernels.ELEMENTS_PER_SM_S)
        seconds += each.count * max(copy_s, on.traffic.launch_s + elements_s)
    return seconds


def _masked_fill(name: str, x: Operand, on: DeviceModel) -> tuple[float, float]:
    """In place, after a copy of what is not to be changed."""
    copy_s = on.traffic.time_s(2 * x.n_bytes)
    elements_s = _elements_s(x.n_elements, on, kernels.ELEMENTS_PER_SM_S)
    fill_s = max(kernels.SCATTERED * copy_s, on.traffic.launch_s + elements_s)
    return (fill_s, 1.0) if name == "masked_fill_" else (copy_s + fill_s, 2.0)


def _safe_softmax(operator: Operator, on: DeviceModel) -> tuple[float, float]:
    """As torch carries it out (`kernels.CALLS_WITHIN`); zeros are put in by a kernel that broadcasts."""
    weights, n_flags = operator.outputs[0], operator.outputs[0].n_elements
    moved = operator.bytes_read + operator.bytes_written
    softmax_s = kernels.KERNELS["_softmax"].factor * on.traffic.time_s(moved)
    gathered_s = on.traffic.launch_s + _elements_s(n_flags, on, kernels.FLAGS_PER_SM_S)
    flags_s = on.traffic.time_s(operator.bytes_read + n_flags) + gathered_s
    elements_s = on.traffic.launch_s + _elements_s(n_flags, on, kernels.ELEMENTS_PER_SM_S)
    zeros_s = max(on.traffic.slowed_s(kernels.SCATTERED, 2 * weights.n_bytes), elements_s)
    seconds = softmax_s + flags_s + on.traffic.launch_s + zeros_s
    return seconds, kernels.CALLS_WITHIN[operator.name]


def _joins_short_rows(operator: Operator, setting: Setting) -> bool:
    """Halves of heads, or whole heads that a fused attention laid out each in its own way."""
    part, result = operator.inputs[0], operator.outputs[0]
    shortened = part.shape[-1] != result.shape[-1]
    return len(part.shape) == 4 and (shortened or setting.heads_are_scattered)


def _widens(operator: Operator) -> bool:
    given, made = operator.inputs[0], operator.outputs[0]
    return ITEM_BYTES[made.dtype] > ITEM_BYTES[given.dtype]


def _n_elements(operator: Operator) -> int:
    return max((each.n_elements for each in operator.outputs), default=0)
