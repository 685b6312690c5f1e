"""Small classifiers of many kinds that goen never saw, each with its forward pass by hand.

``by_hand(model, x)`` computes logits and pooled features from the weights with
``torch.nn.functional`` alone: no module of the model is called and nothing of goen is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)

ByHand = tuple[Tensor, dict[str, Tensor]]


class PlainCNN(nn.Module):
    """Convolution, norm and ReLU in place, twice; the norm's output is overwritten by the ReLU."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
        )
        self.neck = nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True))
        self.fc = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.neck(self.body(x).mean((2, 3))))


def norm_by_hand(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    shift = norm.bias - norm.running_mean * scale
    return x * scale[:, None, None] + shift[:, None, None]


def plain_by_hand(model: PlainCNN, x: Tensor) -> ByHand:
    features = {}
    first, norm, _, _, second, other, _ = model.body
    normed = norm_by_hand(norm, F.conv2d(x, first.weight, first.bias, padding=1))
    features["body.1"] = normed.mean((2, 3))
    pooled = F.max_pool2d(normed.clamp_min(0), 2)
    x = norm_by_hand(other, F.conv2d(pooled, second.weight, second.bias, padding=1)).clamp_min(0)
    features["body"] = x.mean((2, 3))
    linear = model.neck[0]
    features["neck.0"] = features["body"] @ linear.weight.T + linear.bias
    hidden = features["neck.0"].clamp_min(0)
    return hidden @ model.fc.weight.T + model.fc.bias, features


class Unit(nn.Module):
    """A residual unit; one ReLU serves twice."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.bypass = nn.Conv2d(inputs, outputs, 1, stride)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(self.act(self.first(x)))
        out += self.bypass(x)
        return self.act(out)


class OddResNet(nn.Module):
    """A ResNet whose parts have other names, in a list inside a backbone."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict(
            {
                "entry": nn.Conv2d(3, 4, 3, 1, 1),
                "trunk": nn.ModuleList([Unit(4, 4, 1), Unit(4, 6, 2), Unit(6, 10, 2)]),
            }
        )
        self.drop = nn.Dropout(0.5)
        self.judge = nn.Linear(10, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.backbone["entry"](x)
        for unit in self.backbone["trunk"]:
            x = unit(x)
        return self.judge(self.drop(F.adaptive_avg_pool2d(x, 1).flatten(1)))


def resnet_by_hand(model: OddResNet, x: Tensor) -> ByHand:
    features = {}
    entry = model.backbone["entry"]
    x = F.conv2d(x, entry.weight, entry.bias, padding=1)
    features["backbone.entry"] = x.mean((2, 3))
    for index, unit in enumerate(model.backbone["trunk"]):
        stride = 1 if index == 0 else 2
        inner = F.conv2d(x, unit.first.weight, unit.first.bias, stride, 1).clamp_min(0)
        outer = F.conv2d(inner, unit.second.weight, unit.second.bias, 1, 1)
        x = (outer + F.conv2d(x, unit.bypass.weight, unit.bypass.bias, stride)).clamp_min(0)
        features[f"backbone.trunk.{index}"] = x.mean((2, 3))
    pooled = features["backbone.trunk.2"]
    return pooled @ model.judge.weight.T + model.judge.bias, features


class EncoderBlock(nn.Module):
    """Attention and a perceptron, each after a norm and around it a shortcut."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attn(normed, normed, normed)[0]
        return x + self.mlp(self.norm2(x))


class SmallViT(nn.Module):
    """A vision transformer with a class token."""

    def __init__(self, classes: int, size: int, patch: int, dim: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, dim))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim))
        self.blocks = nn.ModuleList([EncoderBlock(dim), EncoderBlock(dim)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def attention_by_hand(attn: nn.MultiheadAttention, x: Tensor) -> Tensor:
    q, k, v = (x @ attn.in_proj_weight.T + attn.in_proj_bias).chunk(3, -1)
    out = []
    for head in range(attn.num_heads):
        part = slice(head * attn.head_dim, (head + 1) * attn.head_dim)
        weights = (q[..., part] @ k[..., part].transpose(1, 2) / attn.head_dim**0.5).softmax(-1)
        out.append(weights @ v[..., part])
    return torch.cat(out, -1) @ attn.out_proj.weight.T + attn.out_proj.bias


def vit_by_hand(model: SmallViT, x: Tensor, tokens: str = "mean") -> ByHand:
    def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias

    def pooled(x: Tensor) -> Tensor:
        return x.mean(1) if tokens == "mean" else x[:, 0]

    features = {}
    patch = model.patches.kernel_size[0]
    x = F.conv2d(x, model.patches.weight, model.patches.bias, patch).flatten(2).transpose(1, 2)
    x = torch.cat([model.class_token.repeat(len(x), 1, 1), x], 1) + model.position
    for index, block in enumerate(model.blocks):
        attended = attention_by_hand(block.attn, layer_norm(block.norm1, x))
        features[f"blocks.{index}.attn"] = pooled(attended)
        x = x + attended
        up, _, down = block.mlp
        hidden = F.gelu(layer_norm(block.norm2, x) @ up.weight.T + up.bias)
        x = x + hidden @ down.weight.T + down.bias
        features[f"blocks.{index}"] = pooled(x)
    x = layer_norm(model.norm, x)
    features["norm"] = pooled(x)
    return x[:, 0] @ model.head.weight.T + model.head.bias, features


class Attributes:
    """An output whose parts are attributes."""

    def __init__(self, logits: Tensor, hidden: Tensor) -> None:
        self.logits = logits
        self.hidden = hidden


@dataclass
class Fields:
    logits: Tensor
    hidden: Tensor
    loss: Tensor | None = None


class Pair(NamedTuple):
    hidden: Tensor
    logits: Tensor


RETURNS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "dict": lambda logits, hidden: {"hidden": hidden, "logits": logits},
    "tuple": lambda logits, hidden: (hidden, logits),
    "list": lambda logits, hidden: [hidden, logits],
    "namedtuple": lambda logits, hidden: Pair(hidden, logits),
    "dataclass": lambda logits, hidden: Fields(logits, hidden),
    "object": Attributes,
}


class Talkative(nn.Module):
    """Returns more than logits: ``hidden`` is the map, or with ``flat`` the pooled vector."""

    def __init__(self, classes: int, returns: str = "dict", flat: bool = False) -> None:
        super().__init__()
        self.returns = returns
        self.flat = flat
        self.conv = nn.Conv2d(3, 7, 3, 2)
        self.out = nn.Linear(7, classes)

    def forward(self, x: Tensor) -> object:
        x = self.conv(x)
        pooled = x.mean((2, 3))
        return RETURNS[self.returns](self.out(pooled), pooled if self.flat else x)


def talkative_by_hand(model: Talkative, x: Tensor) -> ByHand:
    pooled = F.conv2d(x, model.conv.weight, model.conv.bias, 2).mean((2, 3))
    return pooled @ model.out.weight.T + model.out.bias, {"conv": pooled}


class ChannelsLast(nn.Module):
    """Maps ``(N, H, W, C)`` from ``mix``, as in Swin."""

    def __init__(self, classes: int, width: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.patches(x).permute(0, 2, 3, 1)).mean((1, 2)))


def channels_last_by_hand(model: ChannelsLast, x: Tensor) -> ByHand:
    x = F.conv2d(x, model.patches.weight, model.patches.bias, 4).flatten(2)
    features = {"patches": x.mean(2)}
    features["mix"] = features["patches"] @ model.mix.weight.T + model.mix.bias
    return features["mix"] @ model.head.weight.T + model.head.bias, features


@dataclass(frozen=True)
class Case:
    """A classifier, the size of its images, its classes, layers to tap and the pass by hand."""

    build: Callable[[], nn.Module]
    size: int
    classes: int
    layers: tuple[str, ...]
    by_hand: Callable[[nn.Module, Tensor], ByHand]


CASES = {
    "plain": Case(lambda: PlainCNN(2), 8, 2, ("body.1", "body", "neck.0"), plain_by_hand),
    "resnet": Case(
        lambda: OddResNet(10),
        32,
        10,
        ("backbone.trunk.1", "backbone.trunk.2", "backbone.entry"),
        resnet_by_hand,
    ),
    "vit": Case(
        lambda: SmallViT(1000, 224, 32),
        224,
        1000,
        ("blocks.0", "blocks.1.attn", "norm"),
        vit_by_hand,
    ),
    "channels_last": Case(
        lambda: ChannelsLast(3), 64, 3, ("mix", "patches"), channels_last_by_hand
    ),
    "dict": Case(lambda: Talkative(100, "dict"), 48, 100, ("conv",), talkative_by_hand),
    "tuple": Case(lambda: Talkative(5, "tuple"), 16, 5, ("conv",), talkative_by_hand),
    "object": Case(lambda: Talkative(7, "object"), 28, 7, ("conv",), talkative_by_hand),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """The classifier in evaluation mode, with norms that have seen something."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CASES[name].build()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean = torch.randn(module.num_features) * 0.1
                module.running_var = torch.rand(module.num_features) + 0.5
    return model.eval()


def pictures(name: str, count: int = 3, seed: int = 1) -> Tensor:
    """Images of the case's size, uint8."""
    generator = torch.Generator().manual_seed(seed)
    size = CASES[name].size
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
