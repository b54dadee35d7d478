"""What the backward passes allocate, against what their launch functions ask torch for."""

from importlib import import_module

import msgspec
import pytest
import torch

from peakward.kernels.ops.decode_attention import triton as decode
from peakward.kernels.ops.flash_attention.hopper import refusals
from peakward.kernels.ops.flash_attention.rule import Rule
from peakward.kernels.ops.flash_attention.triton.settings import backward_settings_for
from peakward.models.presets import model
from peakward.prediction.memory import attention
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.operators.plan import plan
from peakward.records.case import Configuration, ModelCase, Workload

portable = import_module("peakward.kernels.ops.flash_attention.triton.backward")
"""Its package has a function of that name, as Hopper's has."""
for_hopper = import_module("peakward.kernels.ops.flash_attention.hopper.backward")
dq_sums = import_module("peakward.kernels.ops.flash_attention.hopper.dq_sums")
row_terms = import_module("peakward.kernels.ops.flash_attention.hopper.row_terms")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Launches:
    """Stands in for a kernel, and keeps what it is handed."""

    def __init__(self, launched):
        self.launched = launched

    def __getitem__(self, grid):
        return lambda *arguments, **_: self.launched.append(arguments)


def case(head_dim=64, precision="bf16", attention="flash", **configuration):
    return ModelCase(
        model=msgspec.structs.replace(model("tiny"), head_dim=head_dim),
        workload=Workload(batch_size=2, seq_len=70),
        configuration=Configuration(attention=attention, precision=precision, **configuration),
        device="cuda",
    )


@pytest.mark.parametrize("head_dim", [16, 40, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_portable_kernels_keep_a_figure_a_row(head_dim, precision, monkeypatch):
    made = case(head_dim, precision)
    q = torch.empty(2, made.model.n_heads, 70, head_dim, dtype=DTYPES[precision], device="meta")
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    kept = []
    started = []
    monkeypatch.setattr(
        portable, "delta_of", lambda *_: kept.append(torch.empty_like(lse)) or kept[0]
    )
    for name in ("_launch_by_keys", "_launch_by_queries"):
        monkeypatch.setattr(portable, name, lambda *_, name=name: started.append(name))
    gradients = portable.backward(
        q,
        None,
        q,
        q,
        q,
        q,
        lse,
        None,
        Rule(True, None, 1.0),
        settings=backward_settings_for(head_dim, q.dtype, 90),
    )
    assert [each.shape for each in gradients] == [q.shape] * 3
    assert attention.own_scratch(plan(made)) == tuple(each.nbytes for each in kept)
    assert started == ["_launch_by_keys", "_launch_by_queries"]


@pytest.mark.parametrize("head_dim", refusals.HEAD_DIMS)
def test_hoppers_sums_and_figures_of_rows(head_dim, monkeypatch):
    made = case(head_dim, attention="flash-hopper")
    q = torch.empty(2, made.model.n_heads, 70, head_dim, dtype=torch.bfloat16, device="meta")
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    launched = []
    monkeypatch.setattr(for_hopper, "require", lambda *_: None)
    for module, name in (
        (for_hopper, "_attention_backward"),
        (row_terms, "_attention_row_terms"),
        (dq_sums, "_attention_round"),
    ):
        monkeypatch.setattr(module, name, Launches(launched))
    gradients = for_hopper.backward(q, None, q, q, q, q, lse, None, Rule(True, None, 1.0))
    assert [each.shape for each in gradients] == [q.shape] * 3
    lse2, delta, sums, counter = launched[0][4:8]
    assert attention.own_scratch(plan(made)) == tuple(
        each.nbytes for each in (sums, counter, lse2, delta)
    )


def test_of_shared_keys_hopper_has_each_heads_gradients_apart():
    alone = case(64, attention="flash-hopper")
    shared = msgspec.structs.replace(
        alone, model=msgspec.structs.replace(alone.model, n_kv_heads=2)
    )
    apart = 2 * 70 * alone.model.n_heads * 64 * 2
    assert attention.own_scratch(plan(shared)) == (
        *(apart, apart),
        *attention.own_scratch(plan(alone)),
    )


@pytest.mark.parametrize("compile_", ["none", "default"])
@pytest.mark.parametrize("attention", ["flash", "flash-hopper"])
def test_what_is_kept_is_what_cudnns_kernel_keeps(attention, compile_):
    """Queries, keys, values, result and its rows' log-sum-exp; never the scores."""
    own, cudnn, naive = (
        peak_memory(
            msgspec.structs.replace(
                case(attention=each, compile=compile_),
                workload=Workload(batch_size=2, seq_len=1024, pass_="forward_backward"),
            )
        ).peak
        for each in (attention, "sdpa-cudnn", "naive")
    )
    assert own.activations_bytes == cudnn.activations_bytes < naive.activations_bytes


@pytest.mark.parametrize("n_kv_heads", [1, 4, 32])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.parametrize("seq_len", [2, 700, 8192, 100_000])
@pytest.mark.parametrize("head_dim", [128, 64])
@pytest.mark.parametrize(("kv_cache", "item_bytes"), [("static", 2), ("int8", 1)])
def test_parts_of_a_cache_are_those_that_the_kernel_makes(
    n_kv_heads, batch_size, seq_len, head_dim, kv_cache, item_bytes
):
    shape = msgspec.structs.replace(
        model("tiny"), n_heads=32, n_kv_heads=n_kv_heads, head_dim=head_dim, max_seq_len=100_000
    )
    made = ModelCase(
        model=shape,
        workload=Workload(batch_size=batch_size, seq_len=seq_len, pass_="decode"),
        configuration=Configuration(attention="flash-decode", precision="bf16", kv_cache=kv_cache),
        device="cuda",
    )
    settings = decode.settings_for(
        n_groups=batch_size * n_kv_heads,
        n_rows=32 // n_kv_heads,
        span=seq_len,
        row_bytes=item_bytes * head_dim,
        item_bytes=item_bytes,
        n_multiprocessors=decode.H100_MULTIPROCESSORS,
    )
    assert attention.n_parts(plan(made)) == settings.n_splits
    assert peak_memory(made).peak_bytes > 0
