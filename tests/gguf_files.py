"""Writes small .gguf files, and the blocks of few bits that ggml defines (ggml-quants.c)."""

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
