"""Writes small .gguf files, and the blocks of few bits that ggml defines (ggml-quants.c); and a whole model
of two layers, whose tokens are bytes and three merges of them."""

import struct

import torch

ALIGNMENT = 32


def _text(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


class Blocks:
    """Blocks of bytes that stand for numbers of a shape."""

    def __init__(self, shape, data):
        self.shape, self.data = shape, data


def gguf(fields, tensors):
    """The file's bytes: tensors by name, each (ggml's type, a tensor or `Blocks`)."""
    heads, body = b"", b""
    for name, (kind, tensor) in tensors.items():
        body += bytes(-len(body) % ALIGNMENT)
        sizes = tuple(reversed(tensor.shape))
        heads += _text(name) + struct.pack(
            f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, len(body)
        )
        raw = tensor.data if isinstance(tensor, Blocks) else tensor.contiguous().view(torch.uint8)
        body += bytes(raw.flatten().tolist())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    head += b"".join(_text(name) + _value(value) for name, value in fields.items()) + heads
    return head + bytes(-len(head) % ALIGNMENT) + body


def _halves(quants):
    quants = quants.to(torch.uint8)
    return quants[:, :16] | quants[:, 16:] << 4


def _half(number):
    return number.half()[:, None].view(torch.uint8)


def q4_0(x):
    blocks = x.float().reshape(-1, 32)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))[:, 0]
    step = largest / -8
    quants = (blocks / step[:, None] + 8.5).floor().clamp(0, 15)
    return Blocks(x.shape, torch.cat((_half(step), _halves(quants)), dim=1))


def q4_1(x):
    blocks = x.float().reshape(-1, 32)
    least = blocks.amin(1)
    step = (blocks.amax(1) - least) / 15
    quants = ((blocks - least[:, None]) / step[:, None] + 0.5).floor().clamp(0, 15)
    return Blocks(x.shape, torch.cat((_half(step), _half(least), _halves(quants)), dim=1))


def q8_0(x):
    blocks = x.float().reshape(-1, 32)
    step = blocks.abs().amax(1) / 127
    quants = (blocks / step[:, None]).round().to(torch.int8).view(torch.uint8)
    return Blocks(x.shape, torch.cat((_half(step), quants), dim=1))


def _alphabet():
    """The character of each byte, as GPT-2's encoder has it (bytes_to_unicode)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [each for each in range(256) if each not in plain]
    return [*map(chr, plain), *(chr(256 + number) for number in range(len(rest)))]


TOKENS = ["<|endoftext|>", *_alphabet(), "he", "ll", "hell"]
MERGES = ["h e", "l l", "he ll"]
FIELDS = {
    "general.architecture": "llama",
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.rope.freq_base": 500.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": [3, *[1] * (len(TOKENS) - 1)],
    "tokenizer.ggml.eos_token_id": 0,
}
SIZES = {
    "attn_norm": (32,),
    "attn_q": (32, 32),
    "attn_k": (16, 32),
    "attn_v": (16, 32),
    "attn_output": (32, 32),
    "ffn_norm": (32,),
    "ffn_gate": (64, 32),
    "ffn_up": (64, 32),
    "ffn_down": (32, 64),
}


def small_model(path):
    """Writes a model of the shape above with random weights, and returns its path."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*size):
        return 0, torch.randn(size, generator=generator) * 0.3

    tensors = {"token_embd.weight": drawn(len(TOKENS), 32), "output_norm.weight": drawn(32)}
    for layer in range(2):
        for name, size in SIZES.items():
            tensors[f"blk.{layer}.{name}.weight"] = drawn(*size)
    path.write_bytes(gguf(FIELDS, tensors))
    return path
