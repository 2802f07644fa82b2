"""Scikit-learn's handwritten digits: they come with the library, so nothing is downloaded."""

import numpy as np

from fedtailor.data.options import DataOptions
from fedtailor.data.source import Source

ABOUT = "1,797 handwritten digits, 8x8 gray, 10 classes (Alpaydin and Kaynak, 1998; scikit-learn)"


def load(options: DataOptions) -> Source:
    """Read the digits; there is no official test set."""
    from sklearn.datasets import load_digits  # here, because it takes a second

    del options
    data, labels = load_digits(return_X_y=True)
    images = np.rint(data * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    classes = tuple(str(digit) for digit in range(10))
    return Source(images, labels.astype(np.int64), classes, mean=(0.5,), std=(0.5,))
