"""All clients' data as one pair of arrays, so that many clients are not many copies."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.space import Task
from fedtailor.core.types import Augment, Examples
from fedtailor.data.client_names import names_or_numbers
from fedtailor.data.deal import deal
from fedtailor.data.load import load_source
from fedtailor.data.options import CLIENTS, DataOptions
from fedtailor.data.proportions import count_classes
from fedtailor.data.public import draw_public
from fedtailor.data.shift import Shift
from fedtailor.data.shift_clients import deal_shifts, shift_clients
from fedtailor.data.source import SPLITS, Ints, Source
from fedtailor.data.split import without_val
from fedtailor.data.surprises import surprises
from fedtailor.data.unseen import with_unseen


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients' data: one pair of arrays, and for each client which rows are its own."""

    images: (
        Tensor  # (N, C, H, W): the pool's, then the official tests where used, then shifted ones
    )
    labels: Tensor  # (N,), int64
    rows: Tensor  # int64: all clients' rows, one client after another
    bounds: Tensor  # (all clients, 4), int64: rows[b0:b1] train, [b1:b2] val, [b2:b3] test
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment
    clients: int  # that take part in training: ids from 0
    new_clients: int  # that do not: the ids after them
    client_names: tuple[str, ...] = ()  # of all clients, where the data has names
    shifts: tuple[Shift, ...] = ()  # of all clients, where images differ by client
    origins: Tensor | None = None  # of the last images, which are shifted: the rows they were
    public: Tensor | None = None  # rows that are the server's and no client's
    notes: tuple[str, ...] = ()  # sentences on what is surprising about the data
    tells_unseen: bool = False  # whether labels that a client does not train on are told apart

    @property
    def task(self) -> Task:
        """The images' shape and the number of classes."""
        channels, height, width = self.images.shape[1:]
        return Task((channels, height, width), len(self.classes))

    @property
    def names(self) -> list[str]:
        """What all clients are called: their names, or their numbers as text."""
        return names_or_numbers(self.client_names, len(self.bounds))

    def originals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, labels and clients' rows as if nothing had been shifted."""
        if self.origins is None:
            return self.images, self.labels, self.rows
        first = len(self.images) - len(self.origins)
        rows = torch.cat([torch.arange(first), self.origins])[self.rows]
        return self.images[:first], self.labels[:first], rows

    def examples(self, client: int, split: str) -> Examples:
        """Return a client's train, val or test examples, as views; only train is augmented."""
        at = SPLITS.index(split)
        first, last = self.bounds[client, at : at + 2].tolist()
        augment = self.augment if split == "train" else Augment()
        index = self.rows[first:last]
        return Examples(self.images, self.labels, index, self.mean, self.std, augment)

    def public_examples(self) -> Examples | None:
        """Copy the server's images: it keeps them when all others are let go of."""
        if self.public is None:
            return None
        images, labels = self.images[self.public], self.labels[self.public]
        return Examples(images, labels, torch.arange(len(labels)), self.mean, self.std)

    def label_counts(self, *splits: str) -> Ints:
        """Return each client's number of images of each class, over all its splits or some."""
        found = np.zeros((len(self.bounds), len(self.classes)), dtype=np.int64)
        for split in splits or SPLITS:
            at = SPLITS.index(split)
            edges = self.bounds[:, at : at + 2].tolist()
            rows = [self.rows.numpy()[first:last] for first, last in edges]
            found += count_classes(self.labels.numpy(), rows, len(self.classes))
        return found

    def unseen_tests(self) -> Ints:
        """Return each client's number of test images of each class that it does not train on."""
        return np.where(self.label_counts("train") > 0, 0, self.label_counts("test"))


def load_federation(options: DataOptions) -> Federation:
    """Read the data, deal it to the clients, and split every client's share."""
    source = load_source(options)
    clients = _clients(options, source)
    public = draw_public(source, clients + options.new_clients, options)
    parts = deal(source, clients, options, public)
    images, labels = source.images, source.labels
    tests = (source.test_images, source.test_labels)
    if options.split == "official" and tests[0] is not None and tests[1] is not None:
        images, labels = np.concatenate([images, tests[0]]), np.concatenate([labels, tests[1]])
    pool, official = np.split(np.arange(len(labels)), [len(source.labels)])
    testable = official if options.split == "official" else np.setdiff1d(pool, public)
    parts = with_unseen(parts, labels, testable, options)
    shifts, origins = deal_shifts(options, len(parts), images.shape[1]), None
    if shifts:
        images, origins, parts = shift_clients(images, parts, shifts, options.seed)
        labels = np.concatenate([labels, labels[origins]])
    if options.join_val:
        parts = [without_val(own) for own in parts]
    rows, bounds = _lay_out(parts)
    named = source.client_names if options.partition == "by_client" else ()
    return Federation(
        images=torch.from_numpy(np.require(images, requirements=["C", "W"])),
        labels=torch.from_numpy(np.require(labels, requirements=["C", "W"])),
        rows=torch.from_numpy(rows),
        bounds=torch.from_numpy(bounds),
        classes=source.classes,
        mean=source.mean,
        std=source.std,
        augment=_augment(options, images.shape[2:]),
        clients=clients,
        new_clients=options.new_clients,
        client_names=named[: len(parts)],
        shifts=shifts,
        origins=None if origins is None else torch.from_numpy(origins),
        public=torch.from_numpy(public) if len(public) else None,
        notes=(*source.notes, *surprises(source, clients, options)),
        tells_unseen=options.test_unseen > 0,
    )


def _clients(options: DataOptions, source: Source) -> int:
    """Return how many clients train."""
    if options.partition != "by_client":
        return CLIENTS if options.clients is None else options.clients
    if source.client is None:
        raise UserError(
            'data.partition: "by_client" needs data that names its clients (folders '
            "client/class/image, a client column in the .npz file, or a third array of the "
            'function), so give that or choose another partition, such as "dirichlet".'
        )
    there = len(source.client_names)
    clients = there - options.new_clients if options.clients is None else options.clients
    if clients < 1 or clients + options.new_clients > there:
        raise UserError(
            f"data.clients: {max(clients, 1)} clients and {options.new_clients} new ones are "
            f"wanted, but the data has {there} in all, so leave it out, which takes all of them."
        )
    return clients


def _augment(options: DataOptions, size: tuple[int, ...]) -> Augment:
    """Return the random changes to training images, if they leave something of them."""
    crop = options.crop_padding if "crop" in options.augment else 0
    cutout = options.cutout_size if "cutout" in options.augment else 0
    for field, pixels in (("crop_padding", crop), ("cutout_size", cutout)):
        if pixels >= min(size):
            raise UserError(
                f"data.{field}: {pixels} pixels are too many for images of "
                f"{size[0]}x{size[1]}, so set it below {min(size)}."
            )
    return Augment(crop, "flip" in options.augment, cutout)


def _lay_out(parts: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints]:
    """Write all clients' rows one after another; return them and where each part begins."""
    sizes = np.array([[len(rows) for rows in client] for client in parts], dtype=np.int64)
    ends = np.cumsum(sizes.ravel()).reshape(-1, 3)
    bounds = np.concatenate([ends[:, :1] - sizes[:, :1], ends], axis=1)
    return np.concatenate([rows for client in parts for rows in client]), bounds
