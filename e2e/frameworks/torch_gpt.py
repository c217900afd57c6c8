"""Trains a network of two layers and a small GPT: the losses fall, and the first ones are the same once more."""

import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore", message="(?s).*is not compatible with the current PyTorch")
torch.backends.cudnn.enabled = False  # it is in no package of Debian's

TEXT = "the quick brown fox jumps over the lazy dog. " * 8
LETTERS = sorted(set(TEXT))
DATA = torch.tensor([LETTERS.index(c) for c in TEXT])
WIDTH, HEADS, LENGTH, BATCH = 32, 2, 16, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2)
                   for part in self.mix(self.before(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.think(self.between(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS), bias=False)

    def forward(self, tokens):
        x = self.letters(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def train(model, batches, loss_of, steps):
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = loss_of(model, batches())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def two_layers(steps):
    torch.manual_seed(1)
    x = torch.randn(64, 8).cuda()
    y = x.sin().sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    return train(model, lambda: None, lambda m, _: F.mse_loss(m(x), y), steps)


def gpt(steps):
    torch.manual_seed(1)
    data = DATA.cuda()

    def batch():
        at = torch.randint(len(DATA) - LENGTH - 1, (BATCH,))
        return torch.stack([data[i:i + LENGTH + 1] for i in at.tolist()])

    def loss(model, tokens):
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return train(GPT(), batch, loss, steps)


for name, run in {"two layers": two_layers, "GPT": gpt}.items():
    began = time.monotonic()
    losses = run(16)
    print(f"{name}: the loss fell from {losses[0]:.4f} to {losses[-1]:.4f} ({time.monotonic() - began:.1f} s)",
          flush=True)
    assert losses[-1] < losses[0] * 0.7, losses
    again = run(3)
    assert again == losses[:3], (losses, again)
print(f"PyTorch {torch.__version__} trains, and the losses are the same each time")
