"""Which compiled cases the closed form covers, beyond what it covers of eager ones.

Evidence of what Inductor fuses is of blocks with RMSNorm, RoPE and SwiGLU without biases.
"""

from typing import get_args

from peakward.levers.registry import at_work
from peakward.prediction.operators.compiled.attention import KERNELS
from peakward.prediction.operators.plan import Plan
from peakward.records.case import ModelCase, ModulePass, Precision
from peakward.records.errors import PeakwardError

_WIDEST = 8192
"""d_model, above which 132 multiprocessors have enough to do with one row of sums each, so that
Inductor does not take a norm weight's gradient in parts."""


def expect_covered(case: ModelCase, plan: Plan) -> None:
    """Nothing where the closed form gives the compiled case's operators.

    Raises:
        PeakwardError: where it does not.
    """
    shape, configuration = case.model, case.configuration
    precisions = (each for each in get_args(Precision) if each != "fp8")
    _expect("pass of compiled blocks", case.workload.pass_, *get_args(ModulePass))
    _expect("compile_scope", configuration.compile_scope, "block")
    _expect("checkpointing of compiled blocks", configuration.checkpointing, "none")
    # Peakward's other loss writes over its logits, of which a compiler may make a copy first.
    _expect("loss of compiled blocks", configuration.loss, "torch", "chunked", "recomputed")
    _expect("weights of compiled blocks", configuration.weights, "dense")
    for axis, value in at_work(configuration):
        if value in axis.work and value not in axis.own_kernels:  # Inductor would fuse it.
            _expect(f"{axis.name} of compiled blocks", value, axis.default, *axis.own_kernels)
    _expect("precision of compiled blocks", configuration.precision, *precisions)
    _expect("kind of norm of compiled blocks", shape.norm, "rmsnorm")
    _expect("positions of compiled blocks", shape.positions, "rope")
    windowed = shape.window is not None and shape.window < plan.seq
    _expect("window of compiled blocks", shape.window if windowed else None, None)
    _expect("activation of compiled blocks", shape.activation, "silu")
    _expect("gated feed-forward of compiled blocks", shape.gated, True)
    _expect("biases of compiled blocks", shape.bias or shape.qkv_bias, False)
    _expect("kernel of compiled attention", plan.attention, *KERNELS)
    if plan.attention == "naive":
        _expect("n_kv_heads of compiled naive attention", shape.n_kv_heads, shape.n_heads)
    _expect("excess of d_model over 8192", max(0, shape.d_model - _WIDEST), 0)


def _expect(setting: str, got: object, *covered: object) -> None:
    if got not in covered:
        raise PeakwardError(
            f"expected {setting} {' or '.join(map(str, covered))} for kernels in closed form, "
            f"got {got}: measure the case instead, or change it"
        )
