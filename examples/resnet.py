"""A convolutional residual network with BatchNorm, as image models have it, written out in full."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["BasicBlock", "ResNet", "model"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al., arXiv:1512.03385)."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Stem, four stages, classifier; ``width`` channels in the first stage, twice as many in each next one."""

    def __init__(self, blocks: tuple[int, ...] = (2, 2, 2, 2), width: int = 32, classes: int = 100) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages = []
        channels_in = width
        for index, count in enumerate(blocks):
            channels = width << index
            first = BasicBlock(channels_in, channels, stride=1 if index == 0 else 2)
            stages.append(nn.Sequential(first, *(BasicBlock(channels, channels) for _ in range(count - 1))))
            channels_in = channels
        self.layers = nn.ModuleList(stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels_in, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.layers:
            x = stage(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def model() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network in eval mode with one batch of images: ``fxpasses lower examples/resnet.py:model``."""
    torch.manual_seed(0)
    return ResNet().eval(), (torch.randn(2, 3, 64, 64),)


def training_model() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The same in train mode: BatchNorm updates its running statistics."""
    torch.manual_seed(0)
    return ResNet().train(), (torch.randn(2, 3, 64, 64),)
