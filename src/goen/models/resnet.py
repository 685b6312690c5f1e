"""The paper's ResNet-18 for small images."""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from goen.models.backbone import Backbone, NetworkConfig, Scale


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return relu(out, inplace=True)


class ResNet18(Backbone):
    """A ResNet-18 whose stem is a 3×3 convolution of stride 1 without pooling, for 32×32 images.

    Paper: §4.1 and §5.1. For larger images the stem has a stride of 2, or of 4: a 7×7 convolution
    of stride 2 and max-pooling by 2, as in He et al., Deep Residual Learning (2016), for ImageNet.

    Example:
        >>> import torch
        >>> network = ResNet18(NetworkConfig(width=4)).eval()
        >>> outputs = network(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
        >>> outputs.logits.shape, outputs.features["z"].shape
        (torch.Size([2, 10]), torch.Size([2, 32]))
    """

    middle = "layer2"

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        widths = [config.width * 2**stage for stage in range(4)]
        stem = config.stem_stride
        self.scales = tuple(
            Scale(f"layer{stage + 1}", channels, stem * 2**stage)
            for stage, channels in enumerate(widths)
        )
        kernel = 7 if stem == 4 else 3
        self.conv1 = nn.Conv2d(
            config.channels, config.width, kernel, min(stem, 2), kernel // 2, bias=False
        )
        self.bn1 = nn.BatchNorm2d(config.width)
        stages, inputs = [], config.width
        for stage, outputs in enumerate(widths):
            first = Block(inputs, outputs, stride=1 if stage == 0 else 2)
            stages.append(nn.Sequential(first, Block(outputs, outputs, 1)))
            inputs = outputs
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self._add_classifier()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                module.weight.data = module.weight.data.contiguous(memory_format=self._layout)
        self._add_rotations()

    def maps(self, x: Tensor) -> Iterator[Tensor]:
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        if self.config.stem_stride == 4:
            x = max_pool2d(x, 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            yield x
