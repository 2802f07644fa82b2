"""A worker process: does clients' steps one after another until its parent is gone."""

import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch

from fedtailor.core import channel, codec, registry
from fedtailor.core.space import Task
from fedtailor.core.types import ClientInfo, Failure, Json, Message, Setting, Tensors
from fedtailor.data.federation import Federation
from fedtailor.engines._base import Ticket
from fedtailor.engines._client import Site, perform


def main(talk: int, lifeline: int) -> None:
    """Serve the parent at the other end of socket `talk`; end when pipe `lifeline` closes."""
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    parent = socket.socket(fileno=talk)
    try:
        site = _site(*channel.receive(parent))
        channel.send(parent, {"ready": True})
        while True:
            _serve(parent, site)
    except (EOFError, ConnectionError):
        return


def _serve(parent: socket.socket, site: Site) -> None:
    head, tensors = channel.receive(parent)
    ticket = codec.unpack(Ticket, {}, head["ticket"])
    try:
        done = perform(site, ticket, Message(tensors, head["info"]))
        message = done.reply.message
        shared = channel.share(message.tensors) if message.tensors else None
        answer = {
            "log": codec.pack(done.reply.log)[1],
            "info": message.info,
            "macs": done.macs,
            "seconds": done.seconds,
            "state_digest": done.state_digest,
        }
    except Exception as error:
        shared, answer = None, {"failure": codec.pack(failure_of(error))[1]}
    channel.send(parent, answer, shared)
    if shared:
        os.close(shared[0])


def failure_of(error: BaseException) -> Failure:
    """Put an exception into one sentence, its traceback beside it."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return Failure(reason, "".join(traceback.format_exception(error)))


def _site(head: Json, tensors: Tensors) -> Site:
    """Build the site from what the parent says: names are looked up here, nothing is unpickled."""

    def made(kind: str) -> Any:
        return codec.unpack(registry.find(kind, head[kind]["name"]), {}, head[kind]["fields"])

    setting = Setting(
        codec.unpack(Task, {}, head["task"]),
        made("space"),
        head["rounds"],
        head["seed"],
        tuple(head["arch"]),
        head["init"],
    )
    clients = codec.unpack(tuple[ClientInfo, ...], {}, head["clients"])
    models = Path(head["models"]) if head["models"] else None
    return Site(
        made("algorithm"),
        setting,
        codec.unpack(Federation, tensors, head["federation"], copy=False),
        clients,
        Path(head["states"]),
        models,
        _own_device(head["device"], head["worker"]),
    )


def _own_device(device: str, worker: int) -> str:
    """Deal the GPUs out to the workers."""
    return f"cuda:{worker % torch.cuda.device_count()}" if device == "cuda" else device


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: it returns when the parent is gone
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
