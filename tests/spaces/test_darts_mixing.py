"""Cells whose operations count by weights, against plain ones that read as the DARTS paper does."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.space import Arch, Task
from fedtailor.networks.pieces import allocate, blueprint
from fedtailor.spaces._darts_cell import EDGES, Cell, Mixing
from fedtailor.spaces.darts import DARTS
from tests.helpers.plain_cells import Maps, PlainCell, PlainSpace

TASK = Task((3, 12, 12), 4)


class SoftmaxCell(nn.Module):
    """A cell in which every edge is the average of its operations by the softmax of its alphas."""

    def __init__(self, cell: PlainCell, alphas: list[Tensor]) -> None:
        super().__init__()
        self.cell, self.alphas = cell, alphas

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cell, (before_last, last) = self.cell, state
        # A plain cell's own sums, with one input after the other as if it had but one term.
        inputs = [Maps(before_last, before_last), Maps(last)]
        maps = [
            Maps(cell._term([inputs[0]], 0, cell.preprocess0, 1)),
            Maps(cell._term([inputs[1]], 0, cell.preprocess1, 1)),
        ]
        edge = 0
        for terms in cell.sums:
            total = torch.zeros(())
            terms = list(terms)
            sources = sorted({source for source, _, _ in terms})
            for source in sources:
                shares = self.alphas[edge].softmax(0)
                own = [term for term in terms if term[0] == source]
                assert len(own) == len(shares)
                for share, term in zip(shares, own, strict=True):
                    total = total + share * cell._term(maps, *term)
                edge += 1
            maps.append(Maps(total))
        return F.relu(last), torch.cat([node.plain for node in maps[2:]], 1)


def networks(space: DARTS, arch: Arch) -> tuple[nn.Module, nn.Module]:
    """Return the same network twice, ours and plain, in double precision."""
    ours = allocate(blueprint(lambda: space.build(arch, TASK)), "cpu").double()
    rng = torch.Generator().manual_seed(0)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3, generator=rng)
    plain = PlainSpace(space).build(arch, TASK).double()
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def random_alphas(space: DARTS, seed: int = 1) -> list[list[Tensor]]:
    """Draw alphas for the edges of both kinds of cells."""
    rng = torch.Generator().manual_seed(seed)
    alive = space._alive(space.largest())
    return [
        [torch.randn(len(n), generator=rng, dtype=torch.float64).requires_grad_() for n in cell]
        for cell in alive
    ]


def mixing_of(alphas: list[list[Tensor]]) -> Mixing:
    normal, reduction = (torch.cat([edge.softmax(0) for edge in cell]) for cell in alphas)
    return normal, reduction


@pytest.mark.parametrize("operations", ["s1", "s2", "s5"])
def test_a_mixed_network_is_the_plain_one_of_the_paper_and_so_are_gradients(operations: str):
    space = DARTS(channels=4, cells=4, operations=operations, form="relaxed")  # pyright: ignore[reportArgumentType]
    ours, plain = networks(space, space.largest())
    alphas = random_alphas(space)
    for name, child in list(plain.named_children()):
        if isinstance(child, PlainCell):
            cell = dict(ours.named_children())[name]
            assert isinstance(cell, Cell)
            setattr(plain, name, SoftmaxCell(child, alphas[cell.arguments[0].reduction]))
    rng = torch.Generator().manual_seed(3)
    images = torch.randn(5, *TASK.shape, generator=rng, dtype=torch.float64)
    labels = torch.randint(TASK.classes, (5,), generator=rng)
    every = [edge for cell in alphas for edge in cell]
    assert len(every) == 2 * len(EDGES)
    found = ours((images, mixing_of(alphas)))
    expected = plain(images)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    gradients = [
        torch.autograd.grad(F.cross_entropy(logits, labels), every) for logits in (found, expected)
    ]
    assert max(g.abs().max() for g in gradients[0]) > 1e-3
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_without_weights_all_operations_count_one():
    space = DARTS(channels=4, cells=3, operations="s2", form="relaxed")
    ours, _ = networks(space, space.largest())
    ours.eval()
    images = torch.randn(2, *TASK.shape, dtype=torch.float64)
    normal, reduction = mixing_of(random_alphas(space))
    ones = torch.ones_like(normal), torch.ones_like(reduction)
    torch.testing.assert_close(ours((images, ones)), ours(images))
    assert not torch.allclose(ours((images, (normal, reduction))), ours(images))


def test_weights_are_those_of_live_operations_and_of_the_kind_of_cell():
    """With some operations removed, a weight of 0 removes one more: the same as without it."""
    space = DARTS(channels=4, cells=3, operations="s2", form="relaxed")
    arch = list(space.largest())
    arch[3] = 1  # an edge of the normal cell keeps its first operation alone
    ours, _ = networks(space, tuple(arch))
    ours.eval()
    alive = space._alive(tuple(arch))
    ones = [torch.ones(sum(map(len, cell)), dtype=torch.float64) for cell in alive]
    gone = sum(map(len, alive[0][:5]))  # the first operation of the normal cell's edge 5
    ones[0][gone] = 0.0
    arch[5] = 2
    fewer = allocate(blueprint(lambda: space.build(tuple(arch), TASK)), "cpu").double().eval()
    fewer.load_state_dict(
        {name: ours.state_dict()[name] for name in fewer.state_dict()}, strict=True
    )
    images = torch.randn(2, *TASK.shape, dtype=torch.float64)
    torch.testing.assert_close(ours((images, (ones[0], ones[1]))), fewer(images))
