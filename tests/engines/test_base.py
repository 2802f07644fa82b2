"""Engines are found by name: the package's own by their files, a user's by `file.py:Class`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.cli.listing import listing
from fedtailor.core import codec, registry
from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation
from fedtailor.engines._base import ClientHost, Engine, Ticket, make_engine
from fedtailor.engines._packing import pack_host, unpack_host
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.prepare import clients_of, setting_of
from fedtailor.runs.config import config_table, make_config
from fedtailor.runs.summary import digest

Tiny = Callable[..., dict[str, Any]]
OWN = Path(__file__).parents[1] / "helpers" / "own_engine.py"


@pytest.mark.parametrize("name", registry.names("engine"))
def test_every_engine_is_one_class_with_options(name: str):
    kind = registry.find("engine", name)
    assert issubclass(kind, Engine)
    engine = make_engine(kind.options(name=name))
    assert isinstance(engine, kind) and engine.collect(0) is None
    engine.close()


def test_engines_are_listed_with_a_line_about_them():
    found = listing("engines")["engines"]
    assert [each["name"] for each in found] == registry.names("engine")
    assert found[0] == {
        "name": "local",
        "about": "This machine: worker processes, or one process for debugging.",
    }


def test_a_users_own_engine_gives_what_every_engine_gives(tiny: Tiny, tmp_path: Path):
    own = tiny(algorithm__name="ditto", engine__name=f"{OWN}:LastFirst", engine__most=7)
    table = config_table(make_config(own))
    assert table["engine"]["most"] == 7 and make_config(table) == make_config(own)
    digests = {
        digest(run(each, tmp_path / str(number)))
        for number, each in enumerate((own, tiny(algorithm__name="ditto")))
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("LastFrist", "has no class LastFrist"),
        ("Half", "Half is no engine: it has no close"),
        ("Foreign", "Foreign must be a subclass of fedtailor.Engine"),
    ],
)
def test_what_is_no_engine_is_one_sentence(name: str, says: str, tiny: Tiny):
    with pytest.raises(UserError, match=rf"^engine\.name: .*{says}$"):
        make_config(tiny(engine__name=f"{OWN}:{name}"))


def test_options_of_another_engine_are_unknown(tiny: Tiny):
    with pytest.raises(UserError, match=r"^engine\.most: unknown"):
        make_config(tiny(engine__most=7))


@pytest.mark.parametrize("here", [True, False])
def test_a_host_goes_over_a_wire(here: bool, tiny: Tiny, federation: Federation, tmp_path: Path):
    config = make_config(tiny(algorithm__name="ditto", space__name="cnn"))
    data = federation if here else None
    clients = clients_of(federation, config)
    setting = setting_of(config, federation)
    host = ClientHost(config.algorithm, setting, data, clients, tmp_path, None, "cuda")
    tensors, packed = pack_host(host)
    back = unpack_host(tensors, codec.loads(codec.dumps(packed)), "cpu")
    assert (back.algorithm, back.setting, back.clients) == (host.algorithm, setting, clients)
    assert (back.states, back.models, back.device) == (tmp_path, None, "cpu")
    if here:
        assert torch.equal(back.client(Ticket("train", 1, 1)).train.images, federation.images)
    else:
        with pytest.raises(RuntimeError, match="not here"):
            back.client(Ticket("train", 1, 1))
