"""JSON over a socket; tensors beside it in anonymous shared memory, passed by descriptor.

Nothing is pickled, one copy is made (into the shared memory), and nothing is left behind when a
process is killed: the memory goes with its last holder.
"""

import json
import mmap
import os
import socket
import tempfile
from collections.abc import Mapping

import torch
from torch import Tensor

from fedtailor.core.types import Json, Tensors

ALIGNMENT = 64


def share(tensors: Mapping[str, Tensor]) -> tuple[int, Json]:
    """Copy tensors into anonymous shared memory; return its descriptor and where each one lies."""
    layout: dict[str, Json] = {}
    descriptor = _anonymous_file()
    position = 0
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        layout[name] = [str(plain.dtype).removeprefix("torch."), list(plain.shape), position]
        view = plain.flatten().view(torch.uint8).numpy().data
        while view:
            written = os.pwrite(descriptor, view, position)
            position += written
            view = view[written:]
        position += -position % ALIGNMENT
    os.ftruncate(descriptor, max(position, 1))
    return descriptor, layout


def attach(descriptor: int, layout: Json) -> Tensors:
    """Look at shared tensors without copying; writing to them is private to this process."""
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    tensors = {}
    for name, (dtype, shape, position) in layout.items():
        kind: torch.dtype = getattr(torch, dtype)
        count = torch.Size(shape).numel()
        if count:
            flat = torch.frombuffer(memory, dtype=kind, count=count, offset=position)
        else:
            flat = torch.empty(0, dtype=kind)
        tensors[name] = flat.view(shape)
    return tensors


def send(channel: socket.socket, head: Json, shared: tuple[int, Json] | None = None) -> None:
    """Send JSON and, where given, shared tensors."""
    layout = shared[1] if shared else None
    body = json.dumps({"head": head, "layout": layout}).encode()
    start = len(body).to_bytes(8, "little")
    if shared:
        socket.send_fds(channel, [start], [shared[0]])
    else:
        channel.sendall(start)
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[Json, Tensors]:
    """Wait for what `send` sent; EOFError when the other side is gone."""
    start, descriptors, _, _ = socket.recv_fds(channel, 8, 1)
    try:
        start += _exactly(channel, 8 - len(start))
        body = json.loads(_exactly(channel, int.from_bytes(start, "little")))
        if body["layout"] is not None and not descriptors:
            raise OSError("no descriptor is left for shared memory: raise the limit (ulimit -n)")
        tensors = attach(descriptors[0], body["layout"]) if descriptors else {}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return body["head"], tensors


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = channel.recv(min(size, 1 << 20))
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedtailor")
    with tempfile.TemporaryFile() as file:  # already unlinked: it goes with its last descriptor
        return os.dup(file.fileno())
