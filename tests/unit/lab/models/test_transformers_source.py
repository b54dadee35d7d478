"""Models of transformers from a configuration alone."""

import importlib.util
import json
from pathlib import Path

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


@pytest.mark.parametrize(
    "key", ["cls", "self", "config", "kwargs", "return_unused_kwargs", "dtype"]
)
@pytest.mark.parametrize("value", [1, None, [], {"a": 1}])
def test_any_key_of_a_configuration_is_taken_or_refused_in_one_line(key, value, at_user_modules):
    pytest.importorskip("transformers")
    path = at_user_modules / "llama" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    try:
        build("llama", "as-written", device="meta", seed=0)
    except PeakwardError as error:
        assert str(error).startswith(
            "expected a causal language model of transformers in llama, got"
        )


def test_sizes_that_no_model_has_are_refused_before_transformers_sees_them(
    at_user_modules, monkeypatch
):
    transformers = pytest.importorskip("transformers")
    built = []
    monkeypatch.setattr(transformers, "CONFIG_MAPPING", built)
    path = at_user_modules / "llama" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_labels": 10**8}))
    for ask in (fingerprint, lambda name: build(name, "as-written", device="cpu", seed=0)):
        with pytest.raises(
            PeakwardError, match="expected 'num_labels' of llama to be at most 32,768"
        ):
            ask("llama")


class Unpickled:
    """Leaves a file where it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("was_run"),)


@pytest.mark.parametrize("named", ["../outside/w.bin", "absolute", "w.bin"])
def test_no_pickle_is_followed_wherever_an_index_says_it_lies(named, at_user_modules):
    pytest.importorskip("transformers")
    (at_user_modules / "outside").mkdir()
    for at in (at_user_modules / "outside" / "w.bin", at_user_modules / "llama" / "w.bin"):
        torch.save({"a": Unpickled()}, at)
    name = str(at_user_modules / "outside" / "w.bin") if named == "absolute" else named
    index = at_user_modules / "llama" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    for ask in (fingerprint, lambda name: build(name, "as-written", device="cpu", seed=0)):
        with pytest.raises(PeakwardError, match=r"which lies outside|whose header is not theirs"):
            ask("llama")
    assert not Path("was_run").exists()


def test_parts_that_an_index_names_are_loaded_and_each_is_in_the_fingerprint(at_user_modules):
    pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    state = build("llama", "as-written", device="cpu", seed=0).module.state_dict()
    half = {name: torch.full_like(each, 0.5) for name, each in state.items()}
    folder = at_user_modules / "llama"
    names = sorted(half)
    parts = {"one.safetensors": names[:3], "two": names[3:]}
    for file, held in parts.items():
        safetensors.save_file({each: half[each] for each in held}, folder / file)
    weight_map = {each: file for file, held in parts.items() for each in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    found = build("llama", "as-written", device="cpu", seed=0).module
    assert all((each == 0.5).all() for each in found.parameters())
    for file, held in parts.items():
        before = fingerprint("llama")
        safetensors.save_file({each: half[each] + 1 for each in held}, folder / file)
        assert fingerprint("llama") != before
    safetensors.save_file(half, folder / "one.safetensors")
    with pytest.raises(PeakwardError, match="expected each weight in one file"):
        build("llama", "as-written", device="cpu", seed=0)


def test_what_lies_beside_the_weights_leads_nowhere(at_user_modules):
    """An adapter's configuration names a base model; transformers would load that instead."""
    pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    state = build("llama", "as-written", device="cpu", seed=0).module.state_dict()
    folder = at_user_modules / "llama"
    safetensors.save_file(
        {name: each.clone() for name, each in state.items()}, folder / "model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "../gpt2"}))
    (folder / "generation_config.json").write_text("no JSON")
    found = build("llama", "as-written", device="cpu", seed=1).module
    assert all(torch.equal(each, state[name]) for name, each in found.state_dict().items())


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_kernel_that_would_be_fetched_is_refused(key, at_user_modules):
    pytest.importorskip("transformers")
    path = at_user_modules / "llama" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "org/kernel:run"}))
    with pytest.raises(PeakwardError, match="would be fetched and run: take the key out"):
        build("llama", "as-written", device="meta", seed=0)
