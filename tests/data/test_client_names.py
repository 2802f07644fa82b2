import pytest

from fedtailor.data.client_names import file_stem_of


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("klinik-ö", "001-klinik-ö"),
        ("1", "001"),
        ("ward 3/b", "001-ward-3-b"),
        ("../../up", "001-up"),
        ("..", "001"),
        ("a" * 300, "001-" + "a" * 60),
    ],
)
def test_a_clients_file_has_its_name_as_far_as_files_allow(name: str, stem: str):
    assert file_stem_of(["0", name], 1) == stem
