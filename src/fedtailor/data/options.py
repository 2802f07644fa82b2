"""The [data] table of the config."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le

Positive: TypeAlias = Annotated[int, Ge(1)]
Scheme: TypeAlias = Literal["iid", "dirichlet", "dirichlet_equal", "shards", "by_client"]
ShiftKind: TypeAlias = Literal[
    "none", "low_resolution", "blur", "grey", "noise", "rotation", "contrast"
]

CLIENTS = 10  # where nothing says how many


@dataclass(frozen=True)
class DataOptions:
    """Which images there are, how the clients share them, and how they are prepared."""

    name: str = "digits"  # a data set known by name
    path: str | None = None  # own data: a folder, .npz file or my_data.py:function; overrides name
    root: str | None = None  # the data root; else $FEDTAILOR_DATA, else ./data
    download: bool = False  # fetch an absent data set from its official site
    seed: int = 0  # of partition and split

    clients: Positive | None = None  # None: 10, or with by_client all there are
    new_clients: Annotated[int, Ge(0)] = 0  # kept out of training: the last ids
    partition: Scheme = "dirichlet"  # iid, dirichlet, dirichlet_equal, shards or by_client
    alpha: Annotated[float, Ge(0.001), Le(1e6)] = (
        0.3  # of the Dirichlet: the smaller, the more uneven
    )
    min_size: Positive = 10  # dirichlet: the fewest images a client may have
    balance: bool = False  # dirichlet: a client that has its fair share gets no later classes
    overlap: Literal[False, True, "leaky"] = (
        False  # dirichlet_equal: clients may share images; leaky: to train on, too, if others test
    )
    classes_per_client: Positive = 2  # shards
    per_client: Positive | None = None  # images per client; dirichlet, by_client: at most this many
    public: Annotated[int, Ge(0)] = 0  # images that belong to the server and to no client

    split: Literal["pool", "official"] = "pool"  # where test images come from
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)  # train, val, test
    test_per_client: Positive | None = None  # split official: this many, which clients may share
    join_val: bool = False  # validation images are trained on from the start; none are left

    size: Positive | None = None  # own folder: resize to size x size
    color: Literal["rgb", "gray"] | None = None  # own folder: convert
    mean: tuple[float, ...] | None = None  # per channel; None: the published one, or 0.5
    std: tuple[Annotated[float, Gt(0)], ...] | None = None  # per channel, as mean
    augment: tuple[Literal["crop", "flip", "cutout"], ...] = ()  # of training images; these three
    crop_padding: Positive = 4  # pixels around an image, from which crop cuts
    cutout_size: Positive = 16  # pixels of a side of what cutout blackens

    test_unseen: Annotated[float, Ge(0), Le(1)] = (
        0.0  # share of a client's test images from classes it does not train on
    )

    shift: tuple[ShiftKind, ...] = ()  # how images of groups of clients differ: blur, noise, ...
    shift_groups: Positive | None = None  # clients are dealt to them in turn; None: each is its own
    shift_strength: Annotated[float, Gt(0), Le(10)] = 1.0  # 1: as docs/data.md has each shift

    def warnings(self) -> tuple[str, ...]:
        """Say in sentences what about these options makes results hard to compare."""
        if self.overlap != "leaky" or self.partition != "dirichlet_equal":
            return ()
        return (
            'data.overlap: "leaky" lets clients train on images by which others choose or, with '
            'split = "pool", are tested, and on those of new clients; accuracies are then too '
            "high, and true is the honest choice",
        )
