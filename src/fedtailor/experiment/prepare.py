"""What an experiment is made of, before anything is written: setting, clients, checks."""

from fedtailor.core.compute import device_of
from fedtailor.core.errors import UserError
from fedtailor.core.types import ClientInfo, Setting
from fedtailor.data.federation import Federation
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.runs.config import Config, budgets_of


def clients_of(federation: Federation, config: Config) -> tuple[ClientInfo, ...]:
    """Register all clients, new ones included, with their devices."""
    total = federation.clients + federation.new_clients
    budgets = budgets_of(config, total, federation.task)
    sizes = (federation.bounds[:, 1] - federation.bounds[:, 0]).tolist()
    return tuple(ClientInfo(i, sizes[i], budgets[i]) for i in range(total))


def taking_part(config: Config, federation: Federation) -> range:
    """Return the ids of the clients that take part."""
    training, total = federation.clients, federation.clients + federation.new_clients
    if config.population == "new" and total == training:
        raise UserError("population: there are no new clients; data.new_clients keeps some out")
    first = training if config.population == "new" else 0
    return range(first, training if config.population == "training" else total)


def check_config(config: Config, federation: Federation) -> None:
    """Raise on what only the data can tell: before anything is written."""
    there = len(taking_part(config, federation))
    if config.cohort and config.cohort > there:
        raise UserError(f"cohort: {config.cohort} clients a round, but there are {there}")
    setting = setting_of(config, federation)
    names = cost.parameter_names(setting.space, setting.arch, setting.task)  # or says why not
    if not any(name.startswith("head.") for name in names):
        raise UserError(
            "space.name: the names of the classifier's parameters must begin with head."
        )
    if setting.init is not None:
        initial_weights(setting)
    device_of(config.engine.device)


def setting_of(config: Config, federation: Federation) -> Setting:
    """Return what server and clients both know."""
    space, arch = config.space, config.space_arch
    chosen = getattr(space, arch)() if isinstance(arch, str) else arch
    return Setting(federation.task, space, config.rounds, config.seed, chosen, config.space_init)
