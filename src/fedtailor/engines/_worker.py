"""What a worker process does: clients' steps, one after another, until its parent is gone."""

import os
import socket

import torch

from fedtailor.core import channel, codec
from fedtailor.core.processes import failure_of
from fedtailor.core.types import Json, Message, Tensors
from fedtailor.engines._base import ClientHost, Ticket
from fedtailor.engines._client import perform
from fedtailor.engines._packing import unpack_host


def serve(parent: socket.socket, head: Json, tensors: Tensors) -> None:
    """Host the clients that the parent describes, and do the steps it asks for."""
    host = unpack_host(tensors, head["host"], _own_device(head["host"]["device"], head["worker"]))
    channel.send(parent, {"ready": True})
    while True:
        _answer(parent, host)


def _answer(parent: socket.socket, host: ClientHost) -> None:
    head, tensors = channel.receive(parent)
    ticket = codec.unpack(Ticket, {}, head["ticket"])
    try:
        done = perform(host, ticket, Message(tensors, head["info"]))
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


def _own_device(device: str, worker: int) -> str:
    """Deal the GPUs out to the workers."""
    return f"cuda:{worker % torch.cuda.device_count()}" if device == "cuda" else device
