"""CIFAR-100 with its fine labels, from its official python files."""

from fedtailor.data.options import DataOptions
from fedtailor.data.source import Source
from fedtailor.data.sources._cifar import Cifar, load_cifar
from fedtailor.data.sources._download import Archive

ABOUT = "50,000 photos and 10,000 to test, 32x32 colour, 100 classes (Krizhevsky, 2009)"

_CIFAR100 = Cifar(
    folder="cifar-100-python",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
    labels="fine_labels",
    names="fine_label_names",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    archive=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
    ),
)


def load(options: DataOptions) -> Source:
    """Read CIFAR-100."""
    return load_cifar(_CIFAR100, options)
