"""A case of a grid: a model of transformers, the pass, the precision, how it is compiled, and its size."""

from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

Precision = Literal["fp32", "bf16-mixed", "bf16"]
Compiled = Literal["none", "blocks", "model"]
Pass = Literal["forward", "train_step"]
Config = dict[str, Any]


def llama_like(hidden: int, layers: int, heads: int, kv: int, ff: int, **more: Any) -> Config:
    """The sizes of a configuration that names them as Llama's does."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ff,
        **more,
    }


POSITIONS = {
    "n_positions": ("gpt2", "gptj", "gpt_bigcode", "codegen", "ctrl"),
    "max_seq_len": ("mpt",),
}
"""Names of the longest sequence, where it is not max_position_embeddings."""


class GridCase(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the grid."""

    kind: str
    """transformers' name of the architecture."""
    config: dict[str, Any]
    pass_: Pass = msgspec.field(name="pass")
    precision: Precision
    compiled: Compiled
    batch: int
    seq_len: int

    @property
    def name(self) -> str:
        """For a line of output."""
        width = self._first("hidden_size", "n_embd", "d_model")
        layers = self._first("num_hidden_layers", "num_layers", "n_layer", "n_layers")
        size = f"{layers} × {width}, {self.batch} × {self.seq_len}"
        return f"{self.kind} {size}, {self.precision}, {self.pass_}, compiled: {self.compiled}"

    def _first(self, *names: str) -> Any:
        return next(self.config[name] for name in names if name in self.config)

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of mixed precision."""
        return torch.bfloat16 if self.precision == "bf16-mixed" else None


def built(case: GridCase, device: str) -> nn.Module:
    """The model as transformers makes it, in its mode and type, compiled where the case is."""
    from transformers import AutoConfig, AutoModelForCausalLM

    more = {} if "max_position_embeddings" in case.config else _positions(case)
    config = AutoConfig.for_model(case.kind, **case.config, **more)
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.train(case.pass_ == "train_step")
    for part in parts(case, model):
        part.compile()
    return model


def parts(case: GridCase, model: nn.Module) -> list[nn.Module]:
    """The parts of the model that are compiled, each by itself."""
    from peakward.lab.models.given_module import repeated_blocks

    if case.compiled == "model":
        return [model]
    return list(repeated_blocks(model) or ()) if case.compiled == "blocks" else []


def _positions(case: GridCase) -> dict[str, int]:
    name = next((name for name, kinds in POSITIONS.items() if case.kind in kinds), None)
    return {name or "max_position_embeddings": max(2048, case.seq_len)}


def inputs(case: GridCase, device: str) -> dict[str, Tensor | bool]:
    """What the model is called with: ids, and where it trains the same as labels."""
    ids = torch.zeros(case.batch, case.seq_len, dtype=torch.int64)
    if device != "cpu":
        vocab = case.config.get("vocab_size", 50_257)
        ids = torch.randint(vocab, ids.shape, device=device)
    given: dict[str, Tensor | bool] = {"input_ids": ids, "use_cache": False}
    if case.pass_ == "train_step":
        given["labels"] = ids.clone()
    return given
