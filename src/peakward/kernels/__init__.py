"""Operators for Transformers, each in place of a call of torch. They need nothing else of Peakward.

    from peakward.kernels import flash_attention, rms_norm

    y = flash_attention(q, k, v, causal=True)

The implementations are under `ops`. A name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peakward.kernels.ops.activation_modules.api import fuse_activations
    from peakward.kernels.ops.adamw.api import TritonAdamW
    from peakward.kernels.ops.cache_write.api import cache_write_
    from peakward.kernels.ops.cross_entropy.api import cross_entropy, cross_entropy_and_lse
    from peakward.kernels.ops.decode_attention.api import (
        decode_attention,
        decode_attention_with_lse,
        paged_decode_attention,
        paged_decode_attention_with_lse,
    )
    from peakward.kernels.ops.flash_attention.api import (
        flash_attention,
        flash_attention_varlen,
        flash_attention_with_lse,
    )
    from peakward.kernels.ops.fp8_linear.api import fp8_linear, fp8_scales
    from peakward.kernels.ops.fp8_modules.api import fp8_layers
    from peakward.kernels.ops.gated_modules.api import fuse_swiglu
    from peakward.kernels.ops.grouped_matmul.api import grouped_matmul
    from peakward.kernels.ops.layer_norm.api import add_layer_norm, layer_norm
    from peakward.kernels.ops.linear_cross_entropy.api import linear_cross_entropy
    from peakward.kernels.ops.norm_modules.api import fuse_norms
    from peakward.kernels.ops.quantized_matmul.api import int4_matmul, int8_matmul
    from peakward.kernels.ops.rms_norm.api import add_rms_norm, rms_norm
    from peakward.kernels.ops.rope.api import rope, rope_, rope_qkv_
    from peakward.kernels.ops.rotation_functions.api import fuse_rope
    from peakward.kernels.ops.softmax.api import softmax
    from peakward.kernels.ops.swiglu.api import gated_product, swiglu

_MODULE_OF = {
    "TritonAdamW": "adamw",
    "add_layer_norm": "layer_norm",
    "add_rms_norm": "rms_norm",
    "cache_write_": "cache_write",
    "cross_entropy": "cross_entropy",
    "cross_entropy_and_lse": "cross_entropy",
    "decode_attention": "decode_attention",
    "decode_attention_with_lse": "decode_attention",
    "flash_attention": "flash_attention",
    "flash_attention_varlen": "flash_attention",
    "flash_attention_with_lse": "flash_attention",
    "fp8_layers": "fp8_modules",
    "fp8_linear": "fp8_linear",
    "fp8_scales": "fp8_linear",
    "fuse_activations": "activation_modules",
    "fuse_norms": "norm_modules",
    "fuse_rope": "rotation_functions",
    "fuse_swiglu": "gated_modules",
    "grouped_matmul": "grouped_matmul",
    "int4_matmul": "quantized_matmul",
    "int8_matmul": "quantized_matmul",
    "layer_norm": "layer_norm",
    "linear_cross_entropy": "linear_cross_entropy",
    "paged_decode_attention": "decode_attention",
    "paged_decode_attention_with_lse": "decode_attention",
    "rms_norm": "rms_norm",
    "rope": "rope",
    "rope_": "rope",
    "rope_qkv_": "rope",
    "softmax": "softmax",
    "swiglu": "swiglu",
    "gated_product": "swiglu",
}

__all__ = [
    "TritonAdamW",
    "add_layer_norm",
    "add_rms_norm",
    "cache_write_",
    "cross_entropy",
    "cross_entropy_and_lse",
    "decode_attention",
    "decode_attention_with_lse",
    "flash_attention",
    "flash_attention_varlen",
    "flash_attention_with_lse",
    "fp8_layers",
    "fp8_linear",
    "fp8_scales",
    "fuse_activations",
    "fuse_norms",
    "fuse_rope",
    "fuse_swiglu",
    "gated_product",
    "grouped_matmul",
    "int4_matmul",
    "int8_matmul",
    "layer_norm",
    "linear_cross_entropy",
    "paged_decode_attention",
    "paged_decode_attention_with_lse",
    "rms_norm",
    "rope",
    "rope_",
    "rope_qkv_",
    "softmax",
    "swiglu",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'peakward.kernels' has no attribute {name!r}")
    return getattr(import_module(f"peakward.kernels.ops.{_MODULE_OF[name]}.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
