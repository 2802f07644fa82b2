"""A setting goes over a wire with every field it has."""

import dataclasses

from fedtailor.core import codec
from fedtailor.core.packing import pack_setting, unpack_setting
from fedtailor.core.space import Task
from fedtailor.core.types import Setting
from fedtailor.spaces.cnn import CNN


def test_every_field_of_a_setting_comes_back():
    values = {
        "task": Task((3, 8, 8), 7),
        "space": CNN(width=5),
        "rounds": 11,
        "seed": 13,
        "arch": (2, 0, 1),
        "init": "weights.safetensors",
    }
    assert set(values) == {field.name for field in dataclasses.fields(Setting)}
    for setting in (Setting(**values), Setting(**values | {"init": None, "arch": ()})):
        assert unpack_setting(codec.loads(codec.dumps(pack_setting(setting)))) == setting
