"""What compiled blocks with Peakward's operators keep, by hand, and where what they make goes."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.memory.step import planned
from peakward.prediction.operators.compiled import block, readout
from peakward.prediction.operators.compiled.block import SavedBlock
from peakward.prediction.operators.compiled.graph import Graph
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.records.case import Configuration, ModelCase, Workload

ALL = {"norm": "fused", "rope": "fused", "swiglu": "fused", "attention": "flash"}
TOKENS, D, FF, QKV, HEADS = 2 * 256, 768, 3072, 3 * 768, 12
WEIGHTS = QKV * D + D * D + 2 * FF * D + FF * D


def case(precision, pass_="train_step", **configuration):
    return ModelCase(
        model=msgspec.structs.replace(model("small"), n_layers=1),
        workload=Workload(batch_size=2, seq_len=256, pass_=pass_),
        configuration=Configuration(
            compile="default", precision=precision, **{**ALL, **configuration}
        ),
        device="cuda",
    )


def kept(made):
    """Bytes that the backward pass of one block is given, its input apart."""
    return held(block.forward, made)


def held(part, made):
    """Bytes that a part of the forward pass returns for the backward pass."""
    plan, on = planned(made), Kernels(graph=Graph())
    found = part(on, plan, on.given(plan.hidden))
    saved = found[0] if isinstance(found[0], SavedBlock) else found
    return sum(each.n_bytes for each in set(on.buffers(*saved.kept)))


def test_what_a_block_keeps_in_bf16():
    """Both norms' results, the sum between, what was turned, attention's result and its logarithms, both
    halves and their product, and each norm's figure a row."""
    wide = (2 * D + D + QKV + D + 2 * FF + FF) * 2
    assert kept(case("bf16")) == TOKENS * (wide + 4 * HEADS + 2 * 4)


def test_what_a_block_keeps_mixed():
    """The sum in fp32, and all four weights' casts."""
    wide = (2 * D + QKV + D + 2 * FF + FF) * 2 + D * 4
    assert kept(case("bf16-mixed")) == TOKENS * (wide + 4 * HEADS + 2 * 4) + 2 * WEIGHTS


def test_torch_s_rope_keeps_queries_and_keys_twice_and_attention_s_result_too():
    """Beside the projection of all three, and head by head as well as row by row."""
    ours, theirs = kept(case("bf16")), kept(case("bf16", rope="torch"))
    assert theirs - ours == TOKENS * 3 * D * 2


def test_what_a_readout_keeps():
    """The normalised stream and its figure a row, the logits, and of each of their rows a maximum and a
    sum."""
    made = case("bf16", norm="torch")
    assert held(readout.loss, made) == TOKENS * (2 * D + 4 + 2 * made.model.vocab_size + 4 + 4)


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed", "fp32"])
@pytest.mark.parametrize("pass_", ["forward", "forward_backward", "train_step"])
def test_each_alone_and_all_have_a_peak(precision, pass_):
    bare = peak_memory(case(precision, pass_, norm="torch", rope="torch", swiglu="torch"))
    for part in ("norm", "rope", "swiglu"):
        others = {each: "torch" for each in ("norm", "rope", "swiglu") if each != part}
        found = peak_memory(case(precision, pass_, **others))
        assert found.peak_bytes == pytest.approx(bare.peak_bytes, rel=0.1)
