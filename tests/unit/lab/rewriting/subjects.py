"""Small modules whose attention is written in the ways that people write it. Nobody prepared them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIM, HEADS, LONGEST, VOCAB = 64, 4, 16, 61


class Written(nn.Module):
    """Projections around an attention that a subclass writes."""

    def __init__(self, p: float = 0.0, kv_heads: int = HEADS) -> None:
        super().__init__()
        self.kv_heads, self.d = kv_heads, DIM // HEADS
        self.qkv = nn.Linear(DIM, DIM + 2 * kv_heads * self.d)
        self.out = nn.Linear(DIM, DIM)
        self.drop = nn.Dropout(p)
        self.register_buffer("tril", torch.tril(torch.ones(LONGEST, LONGEST))[None, None])

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, heads, tokens, head_dim) each."""
        b, t, _ = x.shape
        sizes = [DIM, self.kv_heads * self.d, self.kv_heads * self.d]
        parts = self.qkv(x).split(sizes, dim=2)
        return tuple(each.view(b, t, -1, self.d).transpose(1, 2) for each in parts)  # type: ignore[return-value]

    def merge(self, y: Tensor) -> Tensor:
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        return self.merge(self.attend(*self.split(x), t, mask))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, t: int, mask: Tensor | None) -> Tensor:
        raise NotImplementedError


class Filled(Written):
    """Written like minGPT's."""

    def attend(self, q, k, v, t, mask):
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        return self.drop(F.softmax(att, dim=-1)) @ v


class InPlace(Written):
    """Scores changed in place, and the scale behind the mask."""

    def attend(self, q, k, v, t, mask):
        att = torch.matmul(q, k.mT)
        att.masked_fill_(self.tril[:, :, :t, :t] == 0, -1e9)
        att /= math.sqrt(self.d)
        return self.drop(att.softmax(-1)).matmul(v)


class Chosen(Written):
    """Written like transformers once wrote GPT-2: `where` with the type's least number."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.register_buffer("seen", self.tril.bool(), persistent=False)

    def attend(self, q, k, v, t, mask):
        att = torch.matmul(q, k.transpose(dim0=-1, dim1=-2)) / (self.d**0.5)
        least = torch.full([], torch.finfo(att.dtype).min, dtype=att.dtype)
        att = torch.where(self.seen[:, :, :t, :t], att, least)
        att = nn.functional.softmax(att, dim=-1).type(v.dtype)
        return torch.matmul(self.drop(att), v)


class Biased(Written):
    """A triangle of minus infinity made at each call, added to scores of scaled queries; nn.Softmax."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.softmax = nn.Softmax(dim=-1)

    def attend(self, q, k, v, t, mask):
        q = q * self.d**-0.5
        hidden = torch.full((t, t), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
        return self.drop(self.softmax(q @ k.transpose(2, 3) + hidden)) @ v


class Typed(Written):
    """A triangle put into the queries' type, behind a prefix of no keys: written like Meta's Llama."""

    def attend(self, q, k, v, t, mask):
        hidden = torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
        hidden = torch.hstack([torch.zeros((t, 0)), hidden]).type_as(q)
        att = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.d) + hidden
        return (
            self.drop(
                F.softmax(att.to(torch.promote_types(att.dtype, torch.float32)), -1).type_as(q)
            )
            @ v
        )


class Summed(Written):
    """Products by einsum, heads third, a mask in the scores' shape, softmax in at least fp32."""

    def attend(self, q, k, v, t, mask):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        att = torch.einsum("bqhd,bkhd->bhqk", q, k) * self.d**-0.5
        hidden = torch.ones_like(att, dtype=torch.bool).triu(1)
        att = att.masked_fill(hidden, torch.finfo(att.dtype).min)
        wide = torch.promote_types(att.dtype, torch.float32)
        att = self.drop(F.softmax(att, dim=-1, dtype=wide).to(v.dtype))
        return torch.einsum("bhqk,bkhd->bqhd", att, v).transpose(1, 2)


class Flat(Written):
    """Heads in the batch, baddbmm and bmm."""

    def attend(self, q, k, v, t, mask):
        b = q.shape[0]
        q, k, v = (each.reshape(b * HEADS, t, self.d) for each in (q, k, v))
        bias = torch.zeros(1, t, t, dtype=q.dtype).masked_fill(self.tril[0, :, :t, :t] == 0, -1e9)
        att = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=self.d**-0.5)
        y = torch.bmm(self.drop(torch.softmax(att, -1)), v)
        return y.view(b, HEADS, t, self.d)


class Repeated(Written):
    """Two key-value heads, each repeated for two heads of queries."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p, kv_heads=2)

    def attend(self, q, k, v, t, mask):
        b, kv, _, d = k.shape
        k = k[:, :, None].expand(b, kv, 2, t, d).reshape(b, HEADS, t, d)
        v = v.repeat_interleave(2, dim=1)
        att = q @ k.transpose(-2, -1) / math.sqrt(d)
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        return self.drop(att.softmax(dim=-1)) @ v


class Padded(Written):
    """Causal, and a mask of the batch's: True where a token is padding."""

    def attend(self, q, k, v, t, mask):
        att = q @ k.transpose(-2, -1) / math.sqrt(self.d)
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        if mask is not None:
            att = att.masked_fill(mask[:, None, None, :], float("-inf"))
        return self.drop(att.softmax(dim=-1)) @ v


class Windowed(Written):
    """Each token sees five, its own among them."""

    def attend(self, q, k, v, t, mask):
        place = torch.arange(t)
        distance = place[:, None] - place[None, :]
        att = q @ k.transpose(-2, -1) / math.sqrt(self.d)
        att = att.masked_fill((distance < 0) | (distance >= 5), float("-inf"))
        return self.drop(att.softmax(dim=-1)) @ v


class Sloped(Written):
    """ALiBi: a bias by distance, different from head to head, in a buffer."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        place = torch.arange(LONGEST)
        distance = (place[:, None] - place[None, :]).clamp(min=0)
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)
        self.register_buffer("alibi", -slopes[:, None, None] * distance)

    def attend(self, q, k, v, t, mask):
        att = q @ k.transpose(-2, -1) / math.sqrt(self.d) + self.alibi[:, :t, :t].to(q.dtype)
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        return self.drop(att.softmax(dim=-1)) @ v


class Asked(Written):
    """A call of torch's attention with the triangle as its mask."""

    def attend(self, q, k, v, t, mask):
        seen = self.tril[:, :, :t, :t] != 0
        p = self.drop.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=p)


class Torchs(nn.Module):
    """torch's own module, whose probabilities are made and thrown away, by a mask in a buffer."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(DIM, HEADS, dropout=p, batch_first=True)
        self.register_buffer("mask", torch.full((LONGEST, LONGEST), -torch.inf).triu(1))

    def forward(self, x, mask=None):
        t = x.shape[1]
        return self.inner(x, x, x, attn_mask=self.mask[:t, :t])[0]


class Learned(Written):
    """Each head's scores times a number that is learned, of unit queries and keys."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.temperature = nn.Parameter(torch.rand(HEADS, 1, 1) + 1)

    def attend(self, q, k, v, t, mask):
        att = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT) * self.temperature
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        return self.drop(att.softmax(dim=-1)) @ v


class Scores(nn.Module):
    """The probabilities, computed in a module of their own."""

    def forward(self, q: Tensor, k: Tensor, hidden: Tensor) -> Tensor:
        att = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return att.masked_fill(hidden, float("-inf")).softmax(-1)


class Apart(Written):
    """Calls `Scores`, and multiplies by the values itself."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.scores = Scores()

    def attend(self, q, k, v, t, mask):
        return self.drop(self.scores(q, k, self.tril[:, :, :t, :t] == 0)) @ v


class Softmax(nn.Module):
    """A softmax of one's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float().softmax(-1).to(x.dtype) if x.dtype == torch.float16 else x.softmax(-1)


class Called(Written):
    """Computes scores and values, and calls `Softmax` between them."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.softmax = Softmax()

    def attend(self, q, k, v, t, mask):
        att = q @ k.transpose(-2, -1) / math.sqrt(self.d)
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        return self.drop(self.softmax(att)) @ v


class Capped(Written):
    """Scores bent by tanh, as Gemma 2 does."""

    def attend(self, q, k, v, t, mask):
        att = torch.tanh(q @ k.transpose(-2, -1) / math.sqrt(self.d)) * 5.0
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf"))
        return self.drop(att.softmax(dim=-1)) @ v


class Sunk(Written):
    """A learned score beside those of the keys, which no value belongs to: written like gpt-oss'."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)
        self.sinks = nn.Parameter(torch.zeros(HEADS))

    def attend(self, q, k, v, t, mask):
        sinks = self.sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, t, 1)
        att = torch.cat([q @ k.mT / math.sqrt(self.d), sinks], dim=-1)
        att = att - att.max(dim=-1, keepdim=True).values
        return att.softmax(-1)[..., :-1] @ v


class Reshaped(Written):
    """Scores of a batch of heads, in whose view the heads get a dimension: written like BLOOM's."""

    def attend(self, q, k, v, t, mask):
        flat = q.flatten(0, 1) @ k.flatten(0, 1).mT
        return flat.view(*q.shape[:2], t, t).softmax(-1) @ v


class Block(nn.Module):
    """One block around an attention."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Two blocks, a tied output layer, logits and loss."""

    def __init__(self, kind: type[Written], p: float = 0.0, *, tied: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(LONGEST, DIM)
        self.blocks = nn.ModuleList(Block(kind(p)) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def hidden(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.hidden(ids, mask))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-1)
        return logits, loss


class Weighing(nn.Module):
    """Blocks whose attention gives its probabilities beside its result; the model returns the last ones
    if it is to."""

    def __init__(self, *, returns: bool) -> None:
        super().__init__()
        self.returns = returns
        self.first, self.second = Both(), Both()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x, _ = self.first(x)
        x, weights = self.second(x)
        return (x, weights) if self.returns else (x,)


class Both(Filled):
    """Attention that gives its probabilities too."""

    def forward(self, x: Tensor, mask: Tensor | None = None):
        q, k, v = self.split(x)
        t = x.shape[1]
        att = (q @ k.transpose(-2, -1)) / math.sqrt(self.d)
        att = att.masked_fill(self.tril[:, :, :t, :t] == 0, float("-inf")).softmax(-1)
        return self.merge(att @ v), att.clone()
