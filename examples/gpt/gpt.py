# gpt.py STEPS <STORY: trains a small GPT by PyTorch, letter by letter, and lets it write. It knows nothing of scuda.
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums in each run

import torch
from torch import nn
from torch.nn import functional as F

LENGTH, SEQUENCES, WIDTH, HEADS, LAYERS, WRITTEN = 32, 8, 32, 4, 2, 36


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (p.view(n, t, HEADS, -1).transpose(1, 2) for p in self.qkv(self.first(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.down(F.relu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.words, self.places = nn.Embedding(symbols, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, symbols)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.layers(self.words(tokens) + self.places(places))))


def main():
    steps, story = int(sys.argv[1]), sys.stdin.read().replace("\n", " ")
    letters = sorted(set(story))
    text = torch.tensor([letters.index(c) for c in story])
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    chance = torch.Generator().manual_seed(1)  # on the processor, so that batches are the same on each GPU
    model = GPT(len(letters)).cuda()
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01, foreach=True)
    n = sum(p.numel() for p in model.parameters())
    print(f'trains {n} parameters on "{torch.cuda.get_device_name()}" for {steps} steps', flush=True)
    for step in range(1, steps + 1):
        begin = torch.randint(len(text) - LENGTH, (SEQUENCES, 1), generator=chance) + torch.arange(LENGTH)
        tokens, targets = text[begin].cuda(), text[begin + 1].cuda()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    written = "the laptop "
    with torch.no_grad():
        while len(written) < WRITTEN:
            tokens = torch.tensor([[letters.index(c) for c in written[-LENGTH:]]]).cuda()
            written += letters[model(tokens)[0, -1].argmax().item()]
    print("writes", written)


main()
