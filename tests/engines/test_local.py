"""The local engine: the same bytes whatever does the work, and failures that are seen."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from fedtailor.algorithms.fedavg import Global
from fedtailor.core import channel, codec
from fedtailor.core.errors import UserError
from fedtailor.core.types import Failure, Message, Server
from fedtailor.data.federation import load_federation
from fedtailor.engines import local
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._in_process import InProcess
from fedtailor.engines._worker_pool import WorkerPool
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.prepare import clients_of, setting_of
from fedtailor.experiment.steps import ClientFailedError
from fedtailor.networks.initial import initial_weights
from fedtailor.runs.config import EngineOptions, make_config
from fedtailor.runs.summary import digest, summarise

Tiny = Callable[..., dict[str, Any]]


def host_of(table: dict[str, Any], folder: Path) -> ClientHost:
    config = make_config(table)
    federation = load_federation(config.data)
    return ClientHost(
        config.algorithm, setting_of(config, federation), federation,
        clients_of(federation, config), folder, None,
    )  # fmt: skip


def first_message(host: ClientHost) -> Message:
    server = Server(host.setting, 1, host.clients)
    return host.algorithm.serve(server, host.algorithm.server_init(server), host.clients[0])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Opened:
    """A place for clients that only notes what it was opened with."""

    def __init__(self, *_: Any) -> None:
        self.host: ClientHost | None = None

    def open(self, host: ClientHost) -> None:
        self.host = host


@pytest.mark.parametrize(
    ("cores", "workers", "spare"),
    [(1, 0, 0), (2, 0, 1), (2, 1, 1), (2, 2, 0), (4, 3, 0), (8, 2, 3)],
)
def test_clients_are_told_which_cores_nobody_uses(
    cores: int, workers: int, spare: int, tiny: Tiny, tmp_path: Path, monkeypatch: Any
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    for name in ("InProcess", "WorkerPool"):
        monkeypatch.setattr(local, name, Opened)
    engine = local.Local(EngineOptions(workers=workers))
    engine.open(host_of(tiny(), tmp_path))
    host = cast(Opened, engine._place).host
    assert host and host.client(Ticket("train", 0, 1)).spare == spare


@pytest.mark.parametrize("name", ["ditto", "fedrep"])
def test_the_number_of_workers_changes_nothing(name: str, tiny: Tiny, tmp_path: Path):
    digests, spent = set(), set()
    for workers in (0, 1, 2):
        table = tiny(algorithm__name=name, engine__workers=workers, data__augment=["crop", "flip"],
                     data__crop_padding=1, space__name="resnet18")  # fmt: skip
        table["space"] = {"name": "resnet18", "width": 4}
        made = run(table, tmp_path / str(workers))
        digests.add(digest(made))
        spent.add(tuple(made.db.query("SELECT round, client, part, macs FROM timing")))
    assert len(digests) == 1
    assert len(spent) == 1 and len(spent.pop()) == 4 * (3 + 2), "4 rounds of 3 clients; the server"


def test_draws_from_the_global_generator_are_the_step_s_own(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    """Dropout and the like must not depend on who worked before."""
    digests = set()
    for workers in (0, 2):
        torch.rand(workers + 1)
        table = tiny(algorithm__name=misbehaving("Draws"), engine__workers=workers, rounds=2)
        digests.add(digest(run(table, tmp_path / str(workers))))
    assert len(digests) == 1


def test_another_seed_gives_another_result(tiny: Tiny, tmp_path: Path):
    runs = [run(tiny(seed=seed, rounds=1), tmp_path / str(seed)) for seed in (0, 1)]
    assert digest(runs[0]) != digest(runs[1])


def test_a_message_is_copied_once_for_all_its_clients(tiny: Tiny, tmp_path: Path, monkeypatch: Any):
    host = host_of(tiny(), tmp_path)
    message, shares = first_message(host), []
    share = channel.share
    engine = WorkerPool(1)
    try:
        engine.open(host)
        monkeypatch.setattr(channel, "share", lambda t: (shares.append(len(t)), share(t))[1])
        for client in range(4):
            engine.submit(Ticket("train", client, 1), message)
        found = [engine.collect() for _ in range(4)]
        assert [f[0].client for f in found if f] == [0, 1, 2, 3]
        assert all(f and isinstance(f[1], Done) for f in found)
        assert shares == [len(message.tensors)]
        assert engine.collect() is None
    finally:
        engine.close()


def test_collect_gives_up_when_the_time_is_out(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    host = host_of(tiny(algorithm__name=misbehaving("Slow")), tmp_path)
    engine = WorkerPool(1)
    try:
        engine.open(host)
        engine.submit(Ticket("train", 0, 1), first_message(host))
        began = time.monotonic()
        assert engine.collect(timeout=0.2) is None
        assert time.monotonic() - began < 10
    finally:
        engine.close()


def test_a_dead_worker_is_replaced_and_its_client_reported(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    host = host_of(tiny(algorithm__name=misbehaving("Dies")), tmp_path)
    message = first_message(host)
    engine = WorkerPool(1)
    try:
        engine.open(host)
        for client in (0, 1, 2):
            engine.submit(Ticket("train", client, 1), message)
        outcomes = {}
        for _ in range(3):
            arrived = engine.collect()
            assert arrived is not None
            outcomes[arrived[0].client] = arrived[1]
        assert isinstance(outcomes[0], Done)
        assert isinstance(outcomes[2], Done)
        assert isinstance(outcomes[1], Failure)
        assert "SIGKILL" in outcomes[1].reason
    finally:
        engine.close()


def test_an_idle_worker_that_dies_costs_no_client(tiny: Tiny, tmp_path: Path):
    host = host_of(tiny(), tmp_path)
    message = first_message(host)
    engine = WorkerPool(1)
    try:
        engine.open(host)
        for _ in range(2):
            engine.submit(Ticket("train", 0, 1), message)
            arrived = engine.collect()
            assert arrived and isinstance(arrived[1], Done)
            process = engine._workers[0].process
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("raise ValueError('late')", ".*ValueError while importing.*"),
    ],
)
def test_a_worker_that_cannot_start_is_one_sentence(
    ends: str, why: str, tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    """Not a client's failure, and not an endless row of new workers."""
    lame = tmp_path / "lame.py"
    own = misbehaving("Mine").rpartition(":")[0]
    lame.write_text(
        "import sys\n"
        "if sys.argv[0].endswith('processes.py'):\n"
        f"    {ends}\n" + Path(own).read_text()
    )
    table = tiny(algorithm__name=f"{lame}:Mine", engine__workers=1, on_failure="skip")
    with pytest.raises(UserError, match=rf"^engine\.workers: worker 0 ended \({why}\) before it"):
        run(table, tmp_path / "run")


def test_no_room_for_shared_memory_is_an_error_not_a_wait(
    tiny: Tiny, tmp_path: Path, monkeypatch: Any
):
    host = host_of(tiny(), tmp_path)
    message = first_message(host)

    def full(_: object) -> None:
        raise OSError("no space left on device")

    engine = WorkerPool(1)
    try:
        engine.open(host)
        monkeypatch.setattr(channel, "share", full)
        with pytest.raises(OSError, match="no space left"):
            engine.submit(Ticket("train", 0, 1), message)
    finally:
        engine.close()


def test_info_has_the_same_types_in_every_engine(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    """JSON knows no tuples: an algorithm must not get one in process only."""
    digests = set()
    for workers in (0, 1):
        table = tiny(algorithm__name=misbehaving("Tells"), engine__workers=workers, rounds=1)
        found = run(table, tmp_path / str(workers))
        assert found.db.query("SELECT DISTINCT value FROM metric WHERE name = 'is_list'") == [
            (1.0,)
        ]
        digests.add(digest(found))
    assert len(digests) == 1


def test_results_an_algorithm_does_not_look_at_are_filed_all_the_same(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    found = run(tiny(algorithm__name=misbehaving("Lazy"), cohort=None), tmp_path / "run")
    assert found.db.query("SELECT count(*) FROM message WHERE direction = 'up'") == [(20,)]
    assert len(summarise(found)["test_accuracy"]["per_client"]) == 5


def test_a_client_that_diverges_in_its_only_step_is_a_failure(tiny: Tiny, tmp_path: Path):
    """The loss before the step is fine; the weights after it are not."""
    table = tiny(algorithm__lr=1e38, algorithm__weight_decay=1e3, algorithm__batch=1000)
    with pytest.raises(ClientFailedError, match="became infinite"):
        run(table, tmp_path / "run")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_client_stops_the_run_or_is_skipped(
    workers: int, tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    table = tiny(
        algorithm__name=misbehaving("Fails"), cohort=None, rounds=2, engine__workers=workers
    )
    with pytest.raises(ClientFailedError, match=r"client 1 .* round 1: ValueError: .* broken disk"):
        run(table, tmp_path / "stop")
    assert "Traceback" in (tmp_path / "stop" / "log.txt").read_text()
    found = summarise(run(table | {"on_failure": "skip"}, tmp_path / "skip"))
    assert found["failures"] == 2
    assert len(found["test_accuracy"]["per_client"]) == 5, "it can still be tested"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_client_that_exits_is_a_failure_like_any_other(
    workers: int, tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    name = misbehaving("Exits")
    table = tiny(algorithm__name=name, cohort=None, rounds=1, engine__workers=workers)
    with pytest.raises(ClientFailedError, match="client 1 failed to train in round 1"):
        run(table, tmp_path / "run")


def test_a_round_in_which_all_fail_changes_nothing(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    table = tiny(algorithm__name=misbehaving("Leaks"), rounds=2, on_failure="skip")
    found = run(table, tmp_path / "run")
    assert summarise(found)["failures"] == 6
    assert summarise(found)["bytes"]["up"] == 0 < summarise(found)["bytes"]["down"]
    first = initial_weights(host_of(table, tmp_path).setting)
    assert codec.digest(Global(first)) == codec.digest(codec.read(Global, found.server_path(2)))


@pytest.mark.parametrize(
    ("name", "says"), [("Leaks", "labels"), ("Writes", "copy it first"), ("Misnames", "must be")]
)
def test_an_algorithm_that_breaks_the_contract_is_told_so(
    name: str, says: str, tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    with pytest.raises(ClientFailedError, match=says):
        run(tiny(algorithm__name=misbehaving(name)), tmp_path / "run")


def test_a_users_own_algorithm_runs_in_workers(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    table = tiny(
        algorithm__name=misbehaving("Mine"), algorithm__boost=2.0, engine__workers=1, rounds=1
    )
    found = run(table, tmp_path / "run")
    assert found.db.query("SELECT count(*) FROM message WHERE direction = 'up'")[0][0] == 3


def test_workers_end_when_their_parent_is_killed(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    """Also in the middle of a long step."""
    table = tiny(algorithm__name=misbehaving("Slow"), engine__workers=2)
    code = f"from fedtailor import run\nrun({table!r}, {str(tmp_path / 'run')!r})"
    parent = subprocess.Popen([sys.executable, "-c", code])
    children: list[int] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        children = [int(pid) for pid in listed.read_text().split()] or children
        if len(children) == 2 and (tmp_path / "run" / "run.db").exists():
            break
        time.sleep(0.1)
    time.sleep(3)  # the steps are under way
    assert len(children) == 2 and all(alive(pid) for pid in children)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in children)


def test_shared_tensors_are_views_and_writing_is_private():
    tensors = {"a": torch.arange(5.0), "none": torch.zeros(0, 3), "flag": torch.tensor([True]),
               "odd": torch.arange(6, dtype=torch.uint8).view(2, 3).T}  # fmt: skip
    descriptor, layout = channel.share(tensors)
    first, second = channel.attach(descriptor, layout), channel.attach(descriptor, layout)
    os.close(descriptor)
    assert all(torch.equal(first[name], tensors[name]) for name in tensors)
    first["a"].fill_(7)
    assert torch.equal(second["a"], tensors["a"])


def test_in_process_replies_are_copies(tiny: Tiny, tmp_path: Path):
    """One network serves all clients: a reply must not change when the next client trains."""
    host, engine = host_of(tiny(), tmp_path), InProcess()
    engine.open(host)
    message = first_message(host)
    engine.submit(Ticket("train", 0, 1), message)
    engine.submit(Ticket("train", 1, 1), message)
    first = engine.collect()
    assert first and isinstance(first[1], Done)
    before = {n: t.clone() for n, t in first[1].reply.message.tensors.items()}
    engine.collect()
    assert all(torch.equal(t, before[n]) for n, t in first[1].reply.message.tensors.items())
