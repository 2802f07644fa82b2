"""What an experiment is made of, before anything is written: setting, clients, data, checks."""

from dataclasses import dataclass, field

from fedtailor.core.compute import device_of
from fedtailor.core.errors import UserError
from fedtailor.core.types import ClientInfo, Examples, Setting
from fedtailor.data.client_names import label_of
from fedtailor.data.federation import Federation
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.runs.config import Config, budgets_of
from fedtailor.runs.needs import NeededFile, needed_files


@dataclass(frozen=True)
class Prepared:
    """An experiment that can begin."""

    config: Config
    setting: Setting
    clients: tuple[ClientInfo, ...]  # all that are registered, new ones included
    participants: range  # the ids of those that take part
    data: Federation | None  # None where it is not here, or no longer
    needs: dict[str, NeededFile] = field(default_factory=dict)  # before a client's first round
    public: Examples | None = None  # the server's own images

    @property
    def federation(self) -> Federation:
        """All clients' data, which must be here."""
        if self.data is None:
            raise RuntimeError("the clients' data is not here")
        return self.data


def prepare(config: Config, federation: Federation) -> Prepared:
    """Put an experiment together, or say why it cannot begin; nothing is written."""
    participants = participants_of(config, federation)
    if config.cohort and config.cohort > len(participants):
        there = len(participants)
        raise UserError(
            f"cohort: {config.cohort} clients a round, but there are {there}, so "
            "lower it, or leave it out for all"
        )
    setting = setting_of(config, federation)
    _check(setting)
    config.algorithm.check(setting)
    if config.algorithm.needs_val(setting):
        _check_val(config, federation, participants)
    public, wanted = federation.public_examples(), config.algorithm.needs_public(setting)
    if wanted > (0 if public is None else len(public)):
        raise UserError(
            f"data.public: {config.algorithm_name} decides by images of the server, {wanted} at "
            "the least; set it, to 500 for example"
        )
    device_of(config.engine.device)
    needs, clients = needed_files(config.algorithm.needs(setting)), clients_of(federation, config)
    return Prepared(config, setting, clients, participants, federation, needs, public)


def _check_val(config: Config, federation: Federation, participants: range) -> None:
    """Raise if a client has no images to choose by, which the method needs."""
    chooses = f"{config.algorithm_name} chooses by validation images"
    if config.data.join_val:
        raise UserError(
            f"data.join_val: {chooses}, so they cannot join the training images; leave it false"
        )
    sizes = federation.bounds[list(participants)].diff()[:, 1].tolist()
    if all(sizes):
        return
    if config.data.fractions[1] == 0:
        raise UserError(f"data.fractions: {chooses}, so the second must be above zero")
    who = label_of(federation.names, participants[sizes.index(0)])
    raise UserError(
        f"data.path: {chooses}, but client {who} comes with none; mark some of its images as val, "
        "or take a method that needs none, such as fedavg"
    )


def clients_of(federation: Federation, config: Config) -> tuple[ClientInfo, ...]:
    """Register all clients, new ones included, with their devices."""
    total = federation.clients + federation.new_clients
    budgets = budgets_of(config, total, federation.task)
    sizes = (federation.bounds[:, 1] - federation.bounds[:, 0]).tolist()
    return tuple(ClientInfo(i, sizes[i], budgets[i]) for i in range(total))


def participants_of(config: Config, federation: Federation) -> range:
    """Return the ids of the clients that take part."""
    training, total = federation.clients, federation.clients + federation.new_clients
    if config.population == "new" and total == training:
        raise UserError("population: there are no new clients; data.new_clients keeps some out")
    first = training if config.population == "new" else 0
    return range(first, training if config.population == "training" else total)


def setting_of(config: Config, federation: Federation) -> Setting:
    """Return what server and clients both know."""
    space, arch = config.space.at(federation.task), config.space_arch
    chosen = getattr(space, arch)() if isinstance(arch, str) else space.repair(arch)
    rounds = config.schedule_rounds or config.rounds
    return Setting(federation.task, space, rounds, config.seed, chosen, config.space_init)


def _check(setting: Setting) -> None:
    """Raise if space and data do not go together, or weights to start from do not fit."""
    names = cost.parameter_names(setting.space, setting.arch, setting.task)  # or says why not
    if not any(name.startswith("head.") for name in names):
        raise UserError(
            "space.name: the names of the classifier's parameters must begin with head."
        )
    if setting.init is not None:
        initial_weights(setting)
