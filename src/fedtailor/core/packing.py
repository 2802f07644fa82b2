"""A setting as JSON: the space by its name, all other fields as the codec has them."""

import dataclasses
import typing

from fedtailor.core import codec, registry
from fedtailor.core.types import Json, Setting


def pack_setting(setting: Setting) -> Json:
    """Take a setting apart; whatever fields it has are packed."""
    packed = {"space": registry.describe("space", setting.space)}
    for field in dataclasses.fields(setting):
        if field.name not in packed:
            packed[field.name] = codec.pack(getattr(setting, field.name))[1]
    return packed


def unpack_setting(packed: Json) -> Setting:
    """Build the setting that was packed."""
    hints = typing.get_type_hints(Setting)
    rest = {
        name: codec.unpack(hints[name], {}, tree)
        for name, tree in packed.items()
        if name != "space"
    }
    return Setting(space=registry.rebuild("space", packed["space"]), **rest)
