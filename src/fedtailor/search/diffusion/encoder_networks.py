"""The networks that turn images into features: torchvision's ResNet-18, and a small one of ours.

He et al. 2016, "Deep Residual Learning for Image Recognition". Both take normalised images of three
channels and have no classifier. Their blocks are those of the space `resnet18`.
"""

from itertools import pairwise

from torch import Tensor, nn

from fedtailor.spaces.resnet18 import Block

STAGES = (64, 128, 256, 512)  # channels of ResNet-18
SMALL = (32, 64, 96)  # channels of the small network
SMALL_FEATURES = 128


class ResNet18(nn.Module):
    """ResNet-18 as torchvision lays it out, up to its 512 features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, STAGES[0], 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(STAGES[0])
        before = STAGES[0]
        for number, after in enumerate(STAGES, 1):
            blocks = (_block(before, after, 1 if number == 1 else 2), _block(after, after, 1))
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            before = after

    def forward(self, images: Tensor) -> Tensor:
        """Return features: (n, 512)."""
        x = nn.functional.max_pool2d(self.bn1(self.conv1(images)).relu(), 3, 2, padding=1)
        for number in range(1, len(STAGES) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return x.mean((2, 3))


class Small(nn.Module):
    """A residual network for images of 32 pixels, up to its 128 features."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, SMALL[0], 4, 2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(SMALL[0])
        self.blocks = nn.Sequential(*(_block(a, b, 2) for a, b in pairwise(SMALL)))
        self.last = nn.Conv2d(SMALL[-1], SMALL_FEATURES, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(SMALL_FEATURES)

    def forward(self, images: Tensor) -> Tensor:
        """Return features: (n, 128)."""
        x = self.blocks(self.norm(self.stem(images)).relu())
        return self.last_norm(self.last(x)).relu().mean((2, 3))


def published(name: str) -> str:
    """Return torchvision's name of one of the weights of `ResNet18`."""
    return name.replace(".norm", ".bn").replace(".shortcut.", ".downsample.")


def _block(before: int, after: int, stride: int) -> nn.Module:
    return Block(before, after, stride, nn.BatchNorm2d)
