"""How another process is told which clients it hosts, and with what."""

from pathlib import Path

from fedtailor.core import codec, registry
from fedtailor.core.packing import pack_setting, unpack_setting
from fedtailor.core.types import ClientInfo, Json, Tensors
from fedtailor.data.federation import Federation
from fedtailor.engines._base import ClientHost


def pack_host(host: ClientHost) -> tuple[Tensors, dict[str, Json]]:
    """Say in tensors and JSON what another process needs to host the same clients."""
    tensors, data = codec.pack(host.data, copy=False)
    return tensors, {
        "algorithm": registry.describe("algorithm", host.algorithm),
        "setting": pack_setting(host.setting),
        "data": data,
        "clients": codec.pack(host.clients)[1],
        "states": str(host.states.resolve()),
        "models": str(host.models.resolve()) if host.models else None,
        "device": host.device,
        "spare": host.spare,
        "last_round": host.last_round,
    }


def unpack_host(tensors: Tensors, packed: Json, device: str) -> ClientHost:
    """Host the clients that were packed; names are looked up here, nothing is unpickled."""
    data = packed["data"]
    return ClientHost(
        registry.rebuild("algorithm", packed["algorithm"]),
        unpack_setting(packed["setting"]),
        codec.unpack(Federation, tensors, data, copy=False) if data else None,
        codec.unpack(tuple[ClientInfo, ...], {}, packed["clients"]),
        Path(packed["states"]),
        Path(packed["models"]) if packed["models"] else None,
        device,
        packed["spare"],
        packed["last_round"],
    )
