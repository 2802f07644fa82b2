"""Which operations stay: questions and answers by hand, and every set of operations to the end."""

import itertools

import pytest
import torch

from fedtailor.core.space import Arch
from fedtailor.search import perturb
from fedtailor.search.genes import with_gene
from fedtailor.spaces._darts import OPERATION_SETS
from fedtailor.spaces._darts_cell import EDGES, INPUT_EDGES, NODE_EDGES
from fedtailor.spaces.darts import DARTS
from tests.helpers.made_up import generator

SETS = sorted(OPERATION_SETS)
S2_SKIP, S2_SEP, S2_BOTH = 1, 2, 3
S3_NONE, S3_SKIP, S3_SEP, S3_BOTH = 0, 2, 4, 6  # the bit of `none` is never set
S4_NOISE, S4_SEP, S4_BOTH = 1, 2, 3


def relaxed(operations: str) -> DARTS:
    return DARTS(channels=2, cells=3, form="relaxed", operations=operations)  # pyright: ignore[reportArgumentType]


def arch_of(**genes: int) -> Arch:
    """Return 28 genes: `rest`, but for those named e0 to e27."""
    return tuple(genes.get(f"e{edge}", genes["rest"]) for edge in range(28))


def test_undecided_are_edges_with_several_operations():
    assert perturb.undecided(relaxed("s2").largest()) == [(edge,) for edge in range(28)]
    some = arch_of(rest=S2_SEP, e3=S2_BOTH, e4=0, e20=S2_BOTH)
    assert perturb.undecided(some) == perturb.undecided(some, inputs=2) == [(3,), (20,)]
    assert perturb.undecided(arch_of(rest=S2_SKIP)) == []
    assert perturb.undecided((), inputs=2) == [], "a fixed model"


def test_then_they_are_nodes_with_too_many_inputs_if_that_is_wanted():
    decided = arch_of(rest=S2_SKIP, e6=0, e20=0, e21=0)
    assert perturb.undecided(decided) == []
    assert perturb.undecided(decided, inputs=2) == [
        (2, 3, 4), (5, 7, 8), (9, 10, 11, 12, 13),
        (16, 17, 18), (23, 24, 25, 26, 27),
    ]  # fmt: skip


def test_a_question_about_an_edge():
    space, arch = relaxed("s2"), arch_of(rest=S2_BOTH, e1=S2_SEP)
    asked = perturb.question(space, arch, (17,))
    skip, sep = "reduction c_{k-1} to 1/skip_connect", "reduction c_{k-1} to 1/sep_conv_3x3"
    without_skip, without_sep = with_gene(arch, 17, S2_SEP), with_gene(arch, 17, S2_SKIP)
    assert asked.without == {skip: without_skip, sep: without_sep}
    assert asked.answers == {(skip,): without_sep, (sep,): without_skip}
    assert asked.doubtful == [skip, sep]
    assert asked.answer([sep, skip]) == without_skip
    assert asked.answer([skip, sep]) == without_sep


def test_what_was_removed_before_is_not_asked_about():
    """Of eight operations three are left; `none` can always be the answer."""
    space = relaxed("darts")
    arch = with_gene(space.largest(), 5, 1 << 1 | 1 << 3 | 1 << 6)
    asked = perturb.question(space, arch, (5,))
    names = ["none", "max_pool_3x3", "skip_connect", "dil_conv_3x3"]
    assert [name.partition("/")[2] for name in asked.without] == names
    genes = {name.partition("/")[2]: left[5] for name, left in asked.without.items()}
    assert genes == {
        "none": 1 << 1 | 1 << 3 | 1 << 6,
        "max_pool_3x3": 1 << 3 | 1 << 6,
        "skip_connect": 1 << 1 | 1 << 6,
        "dil_conv_3x3": 1 << 1 | 1 << 3,
    }
    answers = {stays[0].partition("/")[2]: left[5] for stays, left in asked.answers.items()}
    assert answers == dict(zip(names, (0, 1 << 1, 1 << 3, 1 << 6), strict=True))


def test_none_stays_where_nothing_is_missed():
    """Without it the network is as it was: it stays if any removal does good."""
    space, arch = relaxed("s3"), arch_of(rest=S3_BOTH)
    asked = perturb.question(space, arch, (2,))
    none, skip, sep = asked.without
    assert asked.without[none] == arch
    tested = {none: (0.5, -1.0), skip: (0.6, -1.0), sep: (0.7, -1.0)}
    order = perturb.order("accuracy", asked.doubtful, tested, generator())
    assert asked.answer(order) == with_gene(arch, 2, S3_NONE)


def test_a_node_is_never_left_unfed():
    space = relaxed("s3")
    arch = arch_of(rest=S3_BOTH, e0=S3_NONE)  # the first node's other edge
    asked = perturb.question(space, arch, (1,))
    assert [stays[0].partition("/")[2] for stays in asked.answers] == [
        "skip_connect",
        "sep_conv_3x3",
    ]
    assert len(asked.doubtful) == 2 and not any("none" in name for name in asked.doubtful)


def test_an_input_is_never_left_unread():
    """By edges without operation, and by noise, which reads nothing."""
    of_first = {f"e{edge}": S3_NONE for edge in INPUT_EDGES[0][1:]}
    asked = perturb.question(relaxed("s3"), arch_of(rest=S3_BOTH, **of_first), (0,))
    assert [stays[0].partition("/")[2] for stays in asked.answers] == [
        "skip_connect",
        "sep_conv_3x3",
    ]
    noisy = arch_of(rest=S4_BOTH, **{f"e{edge}": S4_NOISE for edge in INPUT_EDGES[0][1:]})
    asked = perturb.question(relaxed("s4"), noisy, (0,))
    assert list(asked.answers.values()) == [with_gene(noisy, 0, S4_SEP)]
    assert asked.doubtful == [], "one answer is left, so nothing is tested"
    assert asked.answer([]) == with_gene(noisy, 0, S4_SEP)


def test_a_question_about_a_node():
    space, arch = relaxed("s2"), arch_of(rest=S2_SKIP, e6=0)
    asked = perturb.question(space, arch, (5, 7, 8), stay=2)
    first, second, third = "normal c_{k-2} to 2", "normal 0 to 2", "normal 1 to 2"
    assert asked.without == {
        first: with_gene(arch, 5, 0), second: with_gene(arch, 7, 0), third: with_gene(arch, 8, 0),
    }  # fmt: skip
    assert asked.answers == {
        (first, second): with_gene(arch, 8, 0),
        (first, third): with_gene(arch, 7, 0),
        (second, third): with_gene(arch, 5, 0),
    }
    assert asked.answer([third, first, second]) == with_gene(arch, 7, 0)
    assert asked.answer([second, third, first]) == with_gene(arch, 5, 0)


def test_the_edge_that_alone_reads_an_input_stays_and_is_not_tested():
    edges = {f"e{edge}": S3_NONE for edge in INPUT_EDGES[0] if edge != 5}
    arch = arch_of(rest=S3_SKIP, **edges)
    asked = perturb.question(relaxed("s3"), arch, (5, 6, 7, 8), stay=2)
    needed, *others = asked.without
    assert asked.doubtful == others
    assert all(needed in stays for stays in asked.answers) and len(asked.answers) == 3
    left = asked.answer([others[1], others[0], others[2]])
    assert [left[edge] for edge in (5, 6, 7, 8)] == [S3_SKIP, 0, S3_SKIP, 0]


def test_of_pairs_that_are_not_legal_the_next_is_taken():
    """Both inputs are read by this node alone, each by one edge: the two stay, whatever the order.

    And where one of two must stay, the better of them does.
    """
    none = dict.fromkeys((f"e{e}" for e in (*INPUT_EDGES[0], *INPUT_EDGES[1])), S3_NONE)
    first = {"e0": S3_SKIP, "e2": S3_SKIP}  # both read the first input
    arch = arch_of(rest=S3_SKIP, **(none | first | {"e9": S3_SKIP, "e10": S3_SKIP}))
    asked = perturb.question(relaxed("s3"), arch, (9, 10, 11, 12, 13), stay=2)
    names = list(asked.without)
    assert asked.doubtful == [names[0], *names[2:]], "e10 alone reads the second input"
    left = asked.answer([names[4], names[3], names[2], names[0]])
    assert [bool(left[edge]) for edge in range(9, 14)] == [False, True, False, False, True]


def test_orders():
    tested = {"a": (0.5, -2.0), "b": (0.4, -1.0), "c": (0.5, -3.0), "d": (0.9, -4.0)}
    by = {
        "accuracy": ["b", "c", "a", "d"],  # lowest accuracy first, then the highest loss
        "loss": ["d", "c", "a", "b"],
        "printed": ["d", "a", "c", "b"],
    }
    for rule, order in by.items():
        assert perturb.order(rule, list(tested), tested, generator()) == order  # pyright: ignore[reportArgumentType]
    some = ["a", "d"]
    assert perturb.order("accuracy", some, tested, generator()) == ["a", "d"], "of those asked for"


def test_a_random_order_looks_at_nothing_and_is_fair():
    rng, names = generator(), ["a", "b", "c"]
    drawn = [tuple(perturb.order("random", names, {}, rng)) for _ in range(600)]
    counts = [drawn.count(order) for order in itertools.permutations(names)]
    assert all(70 < count < 130 for count in counts), "100 each"


def test_both_cells_are_asked_about_at_random():
    space, rng = relaxed("s2"), generator()
    arch = arch_of(rest=S2_SKIP, e2=S2_BOTH, e9=S2_BOTH, e14=S2_BOTH)
    places = [
        [next(iter(one.without)).partition("/")[0] for one in perturb.ask(space, arch, 0, rng)]
        for _ in range(100)
    ]
    normal, reduction = zip(*places, strict=True)
    assert set(reduction) == {"reduction c_{k-2} to 0"}
    counts = [normal.count(name) for name in ("normal c_{k-2} to 1", "normal c_{k-2} to 3")]
    assert sum(counts) == 100 and min(counts) > 30


def test_a_cell_that_is_decided_waits_for_the_other_before_its_nodes_are():
    arch = arch_of(rest=S2_SKIP, e14=S2_BOTH)
    (asked,) = perturb.ask(relaxed("s2"), arch, 2, generator())
    assert all(name.startswith("reduction c_{k-2} to 0/") for name in asked.without)


@pytest.mark.parametrize("inputs", [0, 2])
@pytest.mark.parametrize("operations", SETS)
def test_every_set_is_decided_to_the_end_and_stays_legal(operations: str, inputs: int):
    """`repair` must never have anything to do, not even to a network that is only tested."""
    space = relaxed(operations)
    for seed in range(6):
        rng, arch, events = generator(seed), space.largest(), 0
        while perturb.undecided(arch, inputs):
            before, events = arch, events + 1
            asked = perturb.ask(space, arch, inputs, rng)
            for one in asked:
                names = one.doubtful
                assert all(space.repair(one.without[n]) == one.without[n] for n in names)
                assert len(names) != 1, "of two answers at least two things differ"
                order = perturb.order("random", names, {}, rng)
                arch = perturb.common(arch, one.answer(order))
            assert space.repair(arch) == arch
            changed = [edge for edge in range(28) if arch[edge] != before[edge]]
            assert changed and len({edge // 14 for edge in changed}) == len(asked)
            assert all(live & ~old == 0 for live, old in zip(arch, before, strict=True))
            if events <= 14:
                assert len(changed) == len(asked) == 2
        assert all(live.bit_count() <= 1 for live in arch)
        assert events == 14 or inputs
        for first, node in itertools.product((0, 14), NODE_EDGES):
            fed = sum(bool(arch[first + edge]) for edge in node)
            assert 1 <= fed <= (inputs or len(node))


@pytest.mark.parametrize(
    ("warmup", "recovery", "last"),
    [(30, 20, 300), (40, 20, 300), (41, 20, 320), (0, 3, 39), (5, 1, 18)],
)
def test_when_the_last_decision_comes(warmup: int, recovery: int, last: int):
    """Counted by searching; a cell has 14 edges, then three nodes with more than two inputs."""
    space = relaxed("s2")
    for inputs, more in ((0, 0), (2, 3)):
        arch, rng, done = space.largest(), generator(), -1
        while perturb.undecided(arch, inputs):
            done += 1
            if done >= warmup and done % recovery == 0:
                (*_, arch), _ = perturb.decide(space, arch, inputs, "random", rng, no_test)
        assert done == last + more * recovery
        assert perturb.last_event(warmup, recovery, space, inputs) == done


def no_test(removed: perturb.Removed) -> perturb.Tested:
    raise AssertionError("chance tests nothing")


def test_offers_are_the_bits_of_a_gene():
    space = relaxed("s1")
    assert len(space.offers) == 2 * len(EDGES)
    for edge, offered in enumerate(space.offers):
        for bit, name in enumerate(offered):
            arch = with_gene(space.largest(), edge, 1 << bit)
            kind = space.drawing(arch)["normal" if edge < 14 else "reduction"]
            assert kind[edge % 14][2] == (name,)


def test_common():
    assert perturb.common((3, 2, 7), (1, 2, 6), (3, 3, 4)) == (1, 2, 4)
    rng = torch.Generator()
    assert perturb.ask(relaxed("s2"), arch_of(rest=S2_SEP), 0, rng) == []
