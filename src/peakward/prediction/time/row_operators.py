"""The time of operators that move rows out of tables and into the order of experts, and of their gradients.

From torch's sources (`Embedding.cu`, `EmbeddingBackwardKernel.cu`, `Sort.cpp`, `SortStable.cu`,
`TensorTopK.cu` and `Indexing.cu` in ATen/native/cuda), and from traces of train steps on an H200 (torch
2.11).
"""

import math

from peakward.prediction.time import kernels
from peakward.prediction.time.device_model import DeviceModel
from peakward.records.op_graph import ITEM_BYTES, Operand, Operator

ROW_BYTES = 16
"""One thread copies so much at once; rows of other lengths go element by element."""
GATHERED = frozenset({"embedding", "index", "index_select"})
"""Rows that are copied from a table, as fast as an addition moves what is written and what is read of the
table: 8,192 rows of 4 KiB took 11.5 µs out of 8.4 MB and 17 out of 33.5."""
BY_ROWS = frozenset({"index_add", "scatter"})
"""Element by element: each finds the place of its row first."""
FILLS = {4: 0.9, 2: 1.25}
"""Over an addition, by bytes of an element: zeros are written at 4.5 to 4.7 TB/s in fp32 (92 MB to 1.2 GB),
and at 3.3 to 3.4 in bf16 (201 to 821 MB)."""
LOST_S = 9e-6
"""The gradient of a loss beside its zeros, one number a row: 9.3 to 10.0 µs for 2,048 and 4,096 rows."""
FEW_TOKENS = 3072
"""Up to so many, one kernel adds up the rows of a table's gradient, token after token."""
A_TOKEN_S, A_COLUMN_S = 49e-9, 43e-12
"""By this kernel a token takes longer the wider it is, up to the first: 33 ns of 768 columns and 47 to 55 of
1,024 to 4,096, for 1,024 and 2,048 random tokens."""
SORTED_LAUNCHES = 30.0
"""More tokens are sorted, and then it is found where the rows of each begin."""
BEGINS_S = 15e-6
"""To find these: 15.2 µs for 4,096 tokens, in eight kernels."""
SUMMED_PER_SM_S = 140e9 / 132
"""Elements of the rows, which two kernels one after the other add up: 120 to 145 · 10⁹ a second each."""
SHORT_SORT = 4096
"""Up to so many elements one block sorts them in place, after a copy and a numbering."""
SHORT_SORT_LAUNCHES = 3.0
SHORT_SORT_CALLS = 4
"""Calls to torch's dispatcher: a numbering, which is copied, the copy, and the sort itself."""
SORT_PASSES = 8
"""CUB's, 8 bits of an int64 in each. It reads and writes keys and indices."""
A_PASS_S = 6.2e-6
"""The least: 5.9 to 6.0 µs for 4,096 elements, 6.4 for 8,192."""
SORT_LAUNCHES = 22.0
"""The passes, each with a fill, and the numbering, a histogram, its sums."""
SORT_CALLS = 10
"""The host's cost of these launches, in calls to torch's dispatcher: as much for each as in the gradient
of indexing, whose 16 launches are priced as seven calls. In a trace of an H200's compiled step a launch took
the host 7.2 µs, a fill 8.7, and a whole product 23.9."""
PLACES_LAUNCHES = 16.0
"""The gradient of indexing makes one number of the indices of a place, by a remainder, a product and a
quotient, and sorts these by as many bits as they have: 35 µs for 8,192 places and next to nothing to add."""
TOPK_LAUNCHES = 2.0
"""To choose from a row, and then to bring the choice in order."""
TOPK_S = 17e-6
"""The least: four of 60 for each of 2,048 tokens took 11.7 and 5.2 µs."""


def row_time(name: str, operator: Operator, on: DeviceModel) -> tuple[float, float] | None:
    """Seconds and launches of one call; None of an operator that is no such."""
    moved = operator.bytes_read + operator.bytes_written
    if name == "sort":
        return _sort(operator, on)
    if name == "_index_put_impl_":
        return _added_at(operator, on)
    if name == "embedding_dense_backward":
        return _added_to_table(operator, on)
    if name == "nll_loss_backward":
        return _filled_s(operator.outputs[0], on) + LOST_S, 2.0
    if name == "topk":
        return max(TOPK_S, on.traffic.launch_s + on.traffic.time_s(moved)), TOPK_LAUNCHES
    if name in GATHERED and _copies_rows(operator):
        return on.traffic.time_s(_gathered_bytes(operator)), 1.0
    if name not in BY_ROWS:
        return None
    elements = math.prod(operator.outputs[0].shape)
    elements_s = on.traffic.launch_s + elements / (on.n_sms * kernels.ELEMENTS_PER_SM_S)
    return max(kernels.SCATTERED * on.traffic.time_s(moved), elements_s), 1.0


def calls_within(operator: Operator) -> int:
    """Calls to torch's dispatcher that the host needs for one of the operator, its own included."""
    if operator.name == "aten.sort":
        return SHORT_SORT_CALLS if _is_short(operator) else SORT_CALLS
    return kernels.CALLS_WITHIN.get(operator.name, 1)


def _copies_rows(operator: Operator) -> bool:
    if len(operator.inputs) != 2:
        return False
    table, places = operator.inputs
    row = table.shape[1:]
    row_bytes = math.prod(row) * ITEM_BYTES[table.dtype]
    is_by_row = operator.outputs[0].shape == (*places.shape, *row)
    return is_by_row and row_bytes % ROW_BYTES == 0


def _gathered_bytes(operator: Operator) -> int:
    table, places = operator.inputs
    written = operator.outputs[0].n_bytes
    return written + min(written, table.n_bytes) + places.n_bytes


def _filled_s(made: Operand, on: DeviceModel) -> float:
    factor = FILLS.get(ITEM_BYTES[made.dtype], max(FILLS.values()))
    return max(on.traffic.launch_s, factor * on.traffic.time_s(made.n_bytes))


def _added_to_table(operator: Operator, on: DeviceModel) -> tuple[float, float]:
    """The gradient of a table is zeros to which rows are added (`embedding_dense_backward_cuda`)."""
    rows, tokens = operator.inputs
    (table,) = operator.outputs
    filled_s = _filled_s(table, on)
    if tokens.n_elements <= FEW_TOKENS:
        a_token_s = min(A_TOKEN_S, A_COLUMN_S * table.shape[-1])
        return filled_s + on.traffic.launch_s + a_token_s * tokens.n_elements, 2.0
    summed_s = 2 * (on.traffic.launch_s + rows.n_elements / (on.n_sms * SUMMED_PER_SM_S))
    return filled_s + _passes_s(tokens, on) + BEGINS_S + summed_s, SORTED_LAUNCHES


def _added_at(operator: Operator, on: DeviceModel) -> tuple[float, float]:
    """The gradient of indexing adds rows that have one place in the order of their places, which are sorted
    first (`index_put_with_sort_kernel`)."""
    moved = operator.bytes_read + operator.bytes_written
    places_s = (PLACES_LAUNCHES - 1) * on.traffic.time_s(4 * operator.inputs[1].n_bytes)
    return places_s + kernels.SCATTERED * on.traffic.time_s(moved), PLACES_LAUNCHES


def _sort(operator: Operator, on: DeviceModel) -> tuple[float, float]:
    """One row."""
    if _is_short(operator):
        return SHORT_SORT_LAUNCHES * on.traffic.time_s(2 * operator.bytes_written), (
            SHORT_SORT_LAUNCHES
        )
    n_beside = SORT_LAUNCHES - 2 * SORT_PASSES
    return _passes_s(operator.inputs[0], on) + n_beside * on.traffic.launch_s, SORT_LAUNCHES


def _is_short(sort: Operator) -> bool:
    return sort.inputs[0].shape[-1] <= SHORT_SORT


def _passes_s(keys: Operand, on: DeviceModel) -> float:
    """Keys and as many indices of the same type are read and written."""
    return SORT_PASSES * max(A_PASS_S, on.traffic.time_s(4 * keys.n_bytes))
