"""Models of transformers from a configuration alone."""

import importlib.util

import pytest
import torch

from peakward.lab.models.transformers_source import build, fingerprint
from peakward.records.errors import PeakwardError


@pytest.mark.parametrize(("kind", "n_layers"), [("llama", 5), ("gpt2", 2)])
@pytest.mark.parametrize(
    ("attention", "chosen"), [("naive", "eager"), ("sdpa", "sdpa"), ("sdpa-math", "sdpa")]
)
def test_a_configuration_is_built_with_the_attention_asked_for(
    kind, n_layers, attention, chosen, at_user_modules
):
    pytest.importorskip("transformers")
    found = build(kind, attention, device="cpu", seed=0)
    assert found.module.config.num_hidden_layers == n_layers
    assert found.module.config._attn_implementation == chosen
    assert found.vocab_size == 50


def test_the_fingerprint_is_of_the_configuration(at_user_modules):
    pytest.importorskip("transformers")
    before = fingerprint("llama")
    assert before == fingerprint("llama/config.json") != fingerprint("gpt2")
    path = at_user_modules / "llama" / "config.json"
    path.write_text(path.read_text().replace("48", "64"))
    assert fingerprint("llama") != before


@pytest.mark.parametrize(
    ("name", "line"), [("absent", "there is no such file or folder"), ("empty", "got no such file")]
)
def test_no_configuration_is_refused(name, line, at_user_modules):
    pytest.importorskip("transformers")
    (at_user_modules / "empty").mkdir()
    with pytest.raises(PeakwardError, match=line):
        fingerprint(name)


def test_another_kind_of_model_is_refused(at_user_modules):
    pytest.importorskip("transformers")
    (at_user_modules / "llama" / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(
        PeakwardError, match="expected a causal language model of transformers in llama"
    ):
        build("llama", "as-written", device="cpu", seed=0)


def test_without_transformers_the_line_that_brings_it(at_user_modules, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for ask in (fingerprint, lambda name: build(name, "as-written", device="cpu", seed=0)):
        with pytest.raises(PeakwardError, match=r"run `pip install 'transformers>=5.0'`"):
            ask("llama")


def test_weights_beside_the_configuration_are_the_model_s(at_user_modules):
    pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    random = build("llama", "as-written", device="cpu", seed=0).module
    before = fingerprint("llama")
    held = {name: torch.full_like(each, 0.25) for name, each in random.state_dict().items()}
    path = at_user_modules / "llama" / "model.safetensors"
    safetensors.save_file(held, path, metadata={"format": "pt"})
    found = build("llama", "as-written", device="cpu", seed=0).module
    assert all((each == 0.25).all() for each in found.parameters())
    trained = fingerprint("llama")
    assert trained != before
    safetensors.save_file({k: v + 1 for k, v in held.items()}, path, metadata={"format": "pt"})
    assert fingerprint("llama") != trained
    held.pop("lm_head.weight")
    safetensors.save_file(held, path, metadata={"format": "pt"})
    with pytest.raises(PeakwardError, match=r"beyond 1 of them, lm_head\.weight among them"):
        build("llama", "as-written", device="cpu", seed=0)
