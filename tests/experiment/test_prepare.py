"""What an experiment is made of: its space knows the size of the images, its config does not."""

from fedtailor.core.packing import pack_setting, unpack_setting
from fedtailor.data.federation import load_federation
from fedtailor.experiment.prepare import setting_of
from fedtailor.runs.config import config_table, make_config
from fedtailor.spaces.mobilenetv3_plato import MobileNetV3Plato

LAST = [len(choice.options) - 1 for choice in MobileNetV3Plato().choices]


def test_a_space_without_resolution_takes_the_images_own():
    """Digits have 8 pixels: three of five kernels make no difference."""
    space = {"name": "mobilenetv3_plato", "width": 0.5, "arch": LAST}
    config = make_config({"space": space, "data": {"name": "digits", "clients": 2}})
    setting = setting_of(config, load_federation(config.data))
    assert setting.space == MobileNetV3Plato(width=0.5, resolution=8)
    assert setting.arch == setting.space.largest() and setting.arch[10:15] == (1, 1, 0, 0, 0)
    assert unpack_setting(pack_setting(setting)) == setting
    assert config.space == MobileNetV3Plato(width=0.5)
    assert "resolution" not in config_table(config)["space"]
