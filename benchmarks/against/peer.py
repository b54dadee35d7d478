"""The peer: transformers' LlamaForCausalLM of a shape, under each of the settings it is given, in the case's
types or with its linear layers in torchao's float8.

transformers 5 hands SDPA a mask that it has materialised whenever its model is traced as a whole,
and waits for the device to look for packed sequences when it is not; both go when the attention
function has a name that it knows no mask for. So the settings run under such names, which call
transformers' own SDPA function, and one keeps the stock `sdpa`.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from against import float8
from peakward.lab.data.feed import micro_batches
from peakward.lab.levers import precision
from peakward.lab.levers.model_step import N_BATCHES
from peakward.levers.optimizer import LEARNING_RATE
from peakward.levers.precision import fp32_matmuls
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

OWN_GRAPHS = ("reduce-overhead", "max-autotune")
PRECISIONS = ("fp32", "tf32", "bf16-mixed", "bf16")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How the peer is run."""

    attention: str = "sdpa-causal-cudnn"
    """sdpa (transformers' own), sdpa-causal (no mask), sdpa-causal-cudnn (no mask, cuDNN alone)."""
    scope: str = "layers"
    """eager, layers (each decoder layer, the last norm and the loss), model (all with the loss)."""
    mode: str = "default"
    float8: str | None = None
    """One of `float8.RECIPES`; None: no layer is in float8."""

    @property
    def name(self) -> str:
        """For a table."""
        compiled = "eager" if self.scope == "eager" else f"{self.scope} {self.mode}"
        recipe = "" if self.float8 is None else f", torchao float8 {self.float8}"
        return f"{compiled}, {self.attention}{recipe}"


def _on_cudnn(*args: object, **kwargs: object) -> tuple[Tensor, None]:
    # Inside the compiled region: outside it, the compiler's cache would not know the difference.
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return sdpa_attention_forward(*args, **kwargs)


AttentionInterface.register("sdpa-causal", sdpa_attention_forward)
AttentionInterface.register("sdpa-causal-cudnn", _on_cudnn)


def settings(device: str, *, whole_model: bool, max_autotune: bool) -> tuple[Setting, ...]:
    """The likeliest best first: what time is left for decides how many are tried."""
    if device == "cpu":
        return (
            Setting(attention="sdpa-causal", scope="eager"),
            Setting(attention="sdpa", scope="eager"),
        )
    tried = [Setting()]
    if whole_model:
        tried.append(Setting(scope="model", mode="reduce-overhead"))
    if max_autotune:
        scope = "model" if whole_model else "layers"
        tried.append(Setting(scope=scope, mode="max-autotune-no-cudagraphs"))
    tried.append(Setting(mode="reduce-overhead"))
    tried.append(Setting(attention="sdpa"))
    if whole_model:
        tried.append(Setting(scope="model"))
    return tuple(tried)


def float8_settings(device: str, *, whole_model: bool) -> tuple[Setting, ...]:
    """As `settings`, in float8. The other attention and max-autotune are tried without it."""
    if device == "cpu":
        return tuple(
            Setting(attention="sdpa-causal", scope="eager", float8=each) for each in float8.RECIPES
        )
    tried = [Setting(float8=each) for each in ("tensorwise-fast", "tensorwise", "rowwise")]
    tried.append(Setting(float8="tensorwise-fast", mode="reduce-overhead"))
    if whole_model:
        tried.append(Setting(float8="tensorwise-fast", scope="model", mode="reduce-overhead"))
    return tuple(tried)


def config_of(shape: ModelShape, attention: str) -> LlamaConfig:
    """Llama's config of one of our shapes.

    Raises:
        PeakwardError: not a Llama (another norm, positions, feed-forward or bias).
    """
    llama = ModelShape(
        **{
            **msgspec.structs.asdict(shape),
            "norm": "rmsnorm",
            "activation": "silu",
            "gated": True,
            "positions": "rope",
            "window": None,
            "qkv_bias": False,
            "bias": False,
        }
    )
    if shape != llama:
        raise PeakwardError(
            f"expected a model with RMSNorm, RoPE, SwiGLU and no biases, got {shape.name}: "
            "LlamaForCausalLM is the one peer"
        )
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_seq_len,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tied_head,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation=attention,
    )


def build(case: ModelCase, attention: str) -> LlamaForCausalLM:
    """On the case's device, in its parameters' type, with weights distributed as the decoder's."""
    shape = case.model
    dtype = precision.parameter_dtype(case.configuration.precision)
    torch.manual_seed(case.workload.seed)
    with torch.device(case.device):
        model = LlamaForCausalLM._from_config(config_of(shape, attention), dtype=dtype)
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data.mul_(1 / math.sqrt(2 * shape.n_layers))
    return model.train(case.workload.pass_ != "forward")


class PeerStep:
    """One pass of the peer over the same batches as ours, again and again."""

    def __init__(self, case: ModelCase, setting: Setting) -> None:
        if case.configuration.precision not in PRECISIONS:
            raise PeakwardError(
                f"expected a precision of {', '.join(PRECISIONS)}, got "
                f"{case.configuration.precision}: the peer has no other"
            )
        self.case, self.setting = case, setting
        self.model = build(case, setting.attention)
        if setting.float8 is not None:
            float8.convert(self.model, setting.float8, emulate=case.device == "cpu")
        self.n_parameters = sum(each.numel() for each in self.model.parameters())
        self.output: Tensor | None = None
        self._run = self._compile()
        self._optimizer: torch.optim.Optimizer | None = None
        if case.workload.pass_ == "train_step":
            self._optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=LEARNING_RATE, fused=True
            )
        self._batches = micro_batches(
            case.workload, case.model.vocab_size, case.device, n_steps=N_BATCHES
        )
        self._next = 0

    def _compile(self) -> Callable[[Tensor, Tensor], Tensor]:
        forward = self.case.workload.pass_ == "forward"
        setting = self.setting
        mode = None if setting.mode == "default" else setting.mode
        if setting.scope == "model":
            return torch.compile(self._logits if forward else self._loss, mode=mode)
        if setting.scope == "eager":
            return self._logits if forward else self._loss
        parts: list[nn.Module] = [*self.model.model.layers, self.model.model.norm]
        for part in parts:
            part.compile(mode=mode)
        if forward:
            return self._logits
        readout = torch.compile(self._readout, mode=mode)
        return lambda ids, targets: readout(self._hidden(ids), targets)

    def _hidden(self, ids: Tensor) -> Tensor:
        return self.model.model(input_ids=ids, use_cache=False).last_hidden_state

    def _readout(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = self.model.lm_head(hidden)
        vocab_size = self.case.model.vocab_size
        return self.model.loss_function(
            logits=logits, labels=None, vocab_size=vocab_size, shift_labels=targets
        )

    def _logits(self, ids: Tensor, _targets: Tensor) -> Tensor:
        return self.model.lm_head(self._hidden(ids))

    def _loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        return self._readout(self._hidden(ids), targets)

    def step(self) -> None:
        """One whole step: all micro-batches and the optimiser."""
        batches = self._batches[self._next % len(self._batches)]
        self._next += 1
        self.output = None
        if self.setting.mode in OWN_GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()
        if self.case.workload.pass_ == "forward":
            with torch.no_grad():
                for ids, targets in batches:
                    self.output = self._under_autocast(ids, targets)
            return
        self.model.zero_grad(set_to_none=True)
        for ids, targets in batches:
            loss = self._under_autocast(ids, targets) / len(batches)
            loss.backward()
            self.output = loss.detach() * len(batches)
        if self._optimizer is not None:
            self._optimizer.step()

    def loss(self) -> float | None:
        """Of the last micro-batch; waits for it. None for `forward`."""
        if self.output is None or self.case.workload.pass_ == "forward":
            return None
        return float(self.output)

    def _under_autocast(self, ids: Tensor, targets: Tensor) -> Tensor:
        with precision.autocast(self.case.configuration.precision, self.case.device):
            return self._run(ids, targets)


@contextmanager
def peer(case: ModelCase, setting: Setting) -> Iterator[PeerStep]:
    """The peer, built; on leaving, nothing of it is held and global settings are as they were."""
    with fp32_matmuls(case.configuration.precision):
        step = PeerStep(case, setting)
        try:
            yield step
        finally:
            step.__dict__.clear()
