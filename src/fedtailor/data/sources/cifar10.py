"""CIFAR-10, from its official python files."""

from fedtailor.data.options import DataOptions
from fedtailor.data.source import Source
from fedtailor.data.sources._cifar import Cifar, load_cifar
from fedtailor.data.sources._download import Archive

ABOUT = "50,000 photos and 10,000 to test, 32x32 colour, 10 classes (Krizhevsky, 2009)"

_CIFAR10 = Cifar(
    folder="cifar-10-batches-py",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
    meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
    labels="labels",
    names="label_names",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    archive=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
    ),
)


def load(options: DataOptions) -> Source:
    """Read CIFAR-10."""
    return load_cifar(_CIFAR10, options)
