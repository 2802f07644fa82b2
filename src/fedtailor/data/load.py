"""Reading the data set that a config names."""

from dataclasses import replace
from difflib import get_close_matches

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.ready_cut import with_tests_apart
from fedtailor.data.source import Source, check
from fedtailor.data.sources import _own


def load_source(options: DataOptions) -> Source:
    """Read the data set the options name, checked."""
    source = _load_named(options) if options.path is None else _own.load(options)
    source = replace(
        source,
        mean=source.mean if options.mean is None else options.mean,
        std=source.std if options.std is None else options.std,
    )
    check(source)
    return source if options.partition == "by_client" else with_tests_apart(source)


def _load_named(options: DataOptions) -> Source:
    """Read a data set known by name: the file name is the registry."""
    name = options.name.replace("_", "-")
    names = registry.names("data")
    if name not in names:
        near = get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise UserError(
            f"data.name: there is no data set '{options.name}', perhaps you meant '{near}' "
            f"(there are {', '.join(names)}; for your own images set data.path)."
        )
    if options.size is not None or options.color is not None:
        field = "size" if options.size is not None else "color"
        raise UserError(f"data.{field}: only a folder of your own images is converted, remove it.")
    return registry.module_of("data", name).load(options)
