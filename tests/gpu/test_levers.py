"""Every lever that acts on CUDA, one step of each against the plain model in fp64."""

import msgspec
import pytest
import torch

from peakward.kernels.ops.attention import reference
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.levers.prepare import prepare
from peakward.lab.numerics.verify import verify
from peakward.levers.catalogue import case_obstacle
from peakward.prediction.memory.peak import peak_memory

pytestmark = pytest.mark.gpu

NARROW = ("bf16-mixed", "fp16-mixed", "bf16", "fp8")
ANY_TYPE = ("naive", "sdpa", "sdpa-efficient", "sdpa-math")
ATTENTION = (*ANY_TYPE, "sdpa-cudnn", "sdpa-flash")
LOSSES = ("fused", "chunked", "recomputed")
PARTS = ("norm", "rope", "swiglu")
QUANTISED = ("int8", "int4:128", "int4:32-calibrated")


def skip_what_the_lever_refuses(case):
    """On this GPU."""
    capability = torch.cuda.get_device_capability()
    reason = case_obstacle(case, compute_capability=capability, has_compiler=True)
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("setting", "attention"),
    [
        *((setting, attention) for setting in ("fp32", "tf32") for attention in ANY_TYPE),
        *((setting, attention) for setting in NARROW for attention in ATTENTION),
    ],
)
def test_precision_with_attention(setting, attention, make_case, check):
    with prepare(make_case(precision=setting, attention=attention)) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "tf32", *NARROW])
@pytest.mark.parametrize("attention", ["flash", "flash-hopper"])
@pytest.mark.parametrize("pass_", ["train_step", "forward", "prefill"])
def test_own_attention(setting, attention, pass_, make_case, check):
    case = make_case(precision=setting, attention=attention, pass_=pass_)
    skip_what_the_lever_refuses(case)
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "tf32", *NARROW])
@pytest.mark.parametrize("options", [{}, {"compile": "default"}, {"cuda_graphs": True}])
def test_own_decode_attention(setting, options, make_case, check):
    workload = {"batch_size": 16}  # Of the sides of fp8 matrices cuBLAS takes multiples of 16.
    case = make_case(
        precision=setting, pass_="decode", attention="flash-decode", workload=workload, **options
    )
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "tf32", *NARROW])
@pytest.mark.parametrize("options", [{}, {"compile": "default"}, {"checkpointing": "every-block"}])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_own_loss(loss, setting, options, accumulate, make_case, check):
    workload = {"accumulate": accumulate}
    case = make_case(precision=setting, loss=loss, workload=workload, **options)
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("loss", LOSSES)
def test_own_loss_in_a_graph(loss, make_case, check):
    with prepare(make_case(precision="bf16", loss=loss, cuda_graphs=True)) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "tf32", *NARROW])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("pass_", ["train_step", "forward", "prefill", "decode"])
def test_own_norm_rope_and_swiglu(part, setting, pass_, make_case, check):
    workload = {"batch_size": 16}  # Of the sides of fp8 matrices cuBLAS takes multiples of 16.
    with prepare(
        make_case(precision=setting, pass_=pass_, workload=workload, **{part: "fused"})
    ) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "bf16-mixed", "bf16", "fp8"])
@pytest.mark.parametrize(
    "options",
    [
        {"compile": "default"},
        {"compile": "default", "checkpointing": "selective"},
        {"cuda_graphs": True},
        {"checkpointing": "every-block", "loss": "chunked"},
        {"compile": "default", "cuda_graphs": True, "loss": "recomputed"},
    ],
    ids=str,
)
def test_all_of_them_together(setting, options, make_case, check):
    attention = "sdpa" if setting == "fp32" else "flash"
    fused = dict.fromkeys(PARTS, "fused")
    with prepare(make_case(precision=setting, attention=attention, **fused, **options)) as step:
        check(step)


@pytest.mark.parametrize(
    "changes", [{"norm": "layernorm"}, {"n_experts": 4, "n_active_experts": 4}]
)
@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_of_other_models(changes, setting, make_case, check):
    with prepare(
        make_case(shape=changes, precision=setting, **dict.fromkeys(PARTS, "fused"))
    ) as step:
        check(step)


@pytest.mark.parametrize("part", [*PARTS, "loss"])
@pytest.mark.parametrize("setting", ["fp32", "bf16-mixed", "bf16"])
def test_their_numbers_hold(part, setting, make_case):
    """By the class that the lever declares."""
    for how in LOSSES if part == "loss" else ("fused",):
        base = make_case(precision=setting)
        found = verify(base, make_case(precision=setting, **{part: how}), "reordered")
        assert (found.verdict, found.reason) == ("holds", None), found


@pytest.mark.parametrize("setting", ["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"])
@pytest.mark.parametrize("options", [{}, {"compile": "default"}, {"cuda_graphs": True}], ids=str)
@pytest.mark.parametrize("pass_", ["forward", "prefill", "decode"])
@pytest.mark.parametrize("weights", QUANTISED)
def test_quantised_weights_err_as_their_steps_say(weights, pass_, options, setting, make_case):
    base = make_case(precision=setting, pass_=pass_)
    candidate = make_case(precision=setting, pass_=pass_, weights=weights, **options)
    found = verify(base, candidate, "approximate")
    assert (found.verdict, found.reason) == ("holds", None), found


@pytest.mark.parametrize("weights", QUANTISED)
def test_quantised_weights_with_everything_else(weights, make_case):
    everything = {
        "attention": "flash-decode",
        "compile": "default",
        "compile_scope": "model",
        "cuda_graphs": True,
        "weights": weights,
        **dict.fromkeys(PARTS, "fused"),
    }
    base = make_case(precision="bf16", pass_="decode")
    candidate = make_case(precision="bf16", pass_="decode", **everything)
    found = verify(base, candidate, "approximate")
    assert (found.verdict, found.reason) == ("holds", None), found


@pytest.mark.parametrize("weights", QUANTISED)
def test_quantised_weights_and_their_building_hold_what_is_predicted(weights, make_case):
    """Of matrices far larger than what a step of one token holds; the head is small."""
    shape = {"d_model": 2048, "d_ff": 8192, "n_heads": 16, "n_kv_heads": 16, "head_dim": 128}
    case = make_case(shape=shape, precision="bf16", pass_="decode", weights=weights)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with prepare(case) as step:
        step.step()
        step.step()
        torch.cuda.synchronize()
        most = torch.cuda.max_memory_allocated() - before
    dense = msgspec.structs.replace(
        case, configuration=msgspec.structs.replace(case.configuration, weights="dense")
    )
    assert most == pytest.approx(peak_memory(case).peak.total_bytes, rel=0.02)
    assert most < peak_memory(dense).peak.total_bytes


@pytest.mark.parametrize("mode", ["sqrt", "every-block", "selective"])
@pytest.mark.parametrize("attention", ["flash", "flash-hopper"])
def test_own_attention_recomputed(mode, attention, make_case, check):
    case = make_case(precision="bf16", attention=attention, checkpointing=mode)
    skip_what_the_lever_refuses(case)
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("setting", ["bf16", "bf16-mixed"])
@pytest.mark.parametrize("attention", ["flash", "flash-hopper"])
def test_own_attention_compiled(setting, attention, graphs, make_case, check):
    options = {"compile": "default", "cuda_graphs": graphs}
    case = make_case(precision=setting, attention=attention, **options)
    skip_what_the_lever_refuses(case)
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "tf32", *NARROW])
@pytest.mark.parametrize("pass_", ["forward", "forward_backward", "prefill", "decode"])
def test_the_other_passes(setting, pass_, make_case, check):
    workload = {"batch_size": 16}  # Of the sides of fp8 matrices cuBLAS takes multiples of 16.
    case = make_case(precision=setting, pass_=pass_, attention="sdpa", workload=workload)
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("attention", ["sdpa-cudnn", "sdpa-flash"])
@pytest.mark.parametrize("setting", ["bf16", "bf16-mixed"])
def test_head_dims(head_dim, attention, setting, make_case, check):
    shape = {"head_dim": head_dim, "d_model": 2 * head_dim}
    with prepare(make_case(shape=shape, precision=setting, attention=attention)) as step:
        check(step)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("setting", ["bf16", "bf16-mixed"])
def test_head_dims_of_the_kernel_for_hopper(head_dim, setting, make_case, check):
    shape = {"head_dim": head_dim, "d_model": 2 * head_dim}
    case = make_case(shape=shape, precision=setting, attention="flash-hopper")
    skip_what_the_lever_refuses(case)
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("attention", ["sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "sdpa-math"])
@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_every_backend_serves_the_passes_with_a_cache(attention, pass_, make_case, check):
    with prepare(make_case(precision="bf16", pass_=pass_, attention=attention)) as step:
        check(step)


ARCHITECTURES = {
    "gqa": {"n_heads": 4, "n_kv_heads": 2},
    "window": {"window": 9},
    "alibi": {"positions": "alibi"},
    "gpt2": {
        "norm": "layernorm",
        "gated": False,
        "activation": "gelu-tanh",
        "positions": "learned",
        "tied_head": True,
        "qkv_bias": True,
        "bias": True,
    },
}


@pytest.mark.parametrize("architecture", ["gqa", "window", "gpt2"])
@pytest.mark.parametrize("setting", ["fp32", "bf16-mixed"])
def test_architectures_with_own_attention(architecture, setting, make_case, check):
    shape = ARCHITECTURES[architecture]
    with prepare(make_case(shape=shape, precision=setting, attention="flash")) as step:
        check(step)


@pytest.mark.parametrize("shape", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
@pytest.mark.parametrize("setting", ["fp32", "bf16-mixed", "bf16"])
def test_architectures(shape, setting, make_case, check):
    with prepare(make_case(shape=shape, precision=setting, attention="sdpa")) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "optimizer", ["adamw-loop", "adamw-foreach", "adamw-fused", "adamw-triton"]
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_optimizers(setting, optimizer, accumulate, make_case, check):
    case = make_case(precision=setting, optimizer=optimizer, workload={"accumulate": accumulate})
    with prepare(case) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("optimizer", ["adamw-bf16-states", "adamw-8bit-states"])
def test_moments_in_fewer_bits(setting, optimizer, make_case, check):
    with prepare(make_case(precision=setting, optimizer=optimizer)) as step:
        check(step)


@pytest.mark.parametrize("setting", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("mode", ["sqrt", "every-block", "selective"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-cudnn"])
def test_checkpointing_is_exact_under_determinism(setting, mode, attention, make_case):
    if setting == "fp32" and attention == "sdpa-cudnn":
        pytest.skip("cuDNN's kernel takes 16-bit types alone")

    def outcome(checkpointing):
        case = make_case(precision=setting, attention=attention, checkpointing=checkpointing)
        with prepare(case) as step:
            step.step()
            return [step.output.clone(), *(each.clone() for each in step.gradients())]

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for found, expected in zip(outcome(mode), outcome("none"), strict=True):
            assert torch.equal(found, expected)
    finally:
        torch.use_deterministic_algorithms(False)


def held_after_forward(case):
    """Bytes that one layer more holds between forward and backward."""

    def held(n_layers):
        deeper = msgspec.structs.replace(
            case, model=msgspec.structs.replace(case.model, n_layers=n_layers)
        )
        with prepare(deeper) as step:
            step.step()
            ids, targets = step._source.again()[0]
            before = torch.cuda.memory_allocated()
            with step._autocast():
                loss = step.model(ids, targets)
            return torch.cuda.memory_allocated() - before + 0 * loss.numel()

    return held(5) - held(4)


def test_checkpointing_holds_one_residual_stream_a_layer(make_case):
    case = make_case(precision="bf16", attention="sdpa", checkpointing="every-block")
    assert held_after_forward(case) == 2 * 64 * 128 * 2


def test_selective_checkpointing_holds_less_than_none(make_case):
    selective, none = (
        held_after_forward(make_case(precision="bf16", attention="sdpa", checkpointing=mode))
        for mode in ("selective", "none")
    )
    assert selective < none


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("seq_len", [16, 77, 256])
def test_attention_errs_no_more_than_twice_the_reference(attention, head_dim, seq_len, error):
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = torch.randn(
        (4, 2, 3, seq_len, head_dim), generator=generator, device="cuda", dtype=torch.bfloat16
    )

    def outcome(function, dtype):
        leaves = [each.to(dtype).requires_grad_() for each in drawn[:3]]
        output = function(*leaves, window=None, bias=None)
        output.backward(drawn[3].to(dtype))
        return [output.detach(), *(leaf.grad for leaf in leaves)]

    oracle = outcome(reference.attention, torch.float64)
    base = outcome(reference.attention, torch.bfloat16)
    found = outcome(implementation(attention), torch.bfloat16)
    assert error(found, oracle) <= 2 * error(base, oracle) + 2.0**-9


def test_sdpa_takes_a_bias_without_the_math_kernel():
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(2, 64, 64, device="cuda")
    implementation("sdpa-efficient")(q, q, q, window=None, bias=bias)


def test_nothing_is_held_after_a_case(make_case):
    """But cuBLAS's workspace, which is the process's, and what the first case of all sets up."""

    def held():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        return torch.cuda.memory_allocated()

    after = []
    for _ in range(2):
        with prepare(make_case(precision="bf16", attention="sdpa", cuda_graphs=True)) as step:
            step.step()
            inside = held()
        after.append(held())
    assert after[0] == after[1] < inside


@pytest.mark.parametrize("setting", ["tf32", "fp32"])
def test_fp32_matmuls_are_in_tf32_inside_such_a_case_alone(setting, make_case, error):
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = torch.randn((2, 256, 256), generator=generator, device="cuda")
    oracle = a.double() @ b.double()
    with prepare(make_case(precision=setting)):
        inside = error([a @ b], [oracle])
    assert (inside > 2.0**-14) == (setting == "tf32")
    assert error([a @ b], [oracle]) < 2.0**-20
