"""The weights that everyone starts from: drawn by the parameters' names, or read from a file."""

import functools
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedtailor.core.compute import is_finite
from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for
from fedtailor.core.space import Arch
from fedtailor.core.types import Setting, Tensors
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.pieces import blueprint, pieces_of
from fedtailor.networks.store import full_shapes, view

Draw = Callable[[torch.Generator], Tensor]


def initial_weights(setting: Setting, arch: Arch | None = None) -> Tensors:
    """Return an architecture's first weights, statistics included; by default the setting's."""
    arch = setting.arch if arch is None else arch
    found = _first_weights(setting, arch, _stamp(setting))
    return {name: weight.clone() for name, weight in found.items()}


def initial_supernet(setting: Setting, statistics: bool = False) -> Tensors:
    """Return the first weights of the whole supernet and, where wanted, batch norm's statistics."""
    found = _first_supernet(setting, _stamp(setting), statistics)
    return {name: weight.clone() for name, weight in found.items()}


def _stamp(setting: Setting) -> tuple[int, int] | None:
    """Return what changes when the file to start from does: what was read of it is kept."""
    if setting.init is None or not Path(setting.init).is_file():
        return None
    about = Path(setting.init).stat()
    return about.st_mtime_ns, about.st_size


@functools.lru_cache(maxsize=2)
def _first_weights(setting: Setting, arch: Arch, stamp: tuple[int, int] | None) -> Tensors:
    model = blueprint(lambda: setting.space.build(arch, setting.task))
    drawn = {
        name: draw(rng_for(setting.seed, "init", name)) for name, draw in _draws(model).items()
    }
    return _warm(setting, drawn | _statistics(model))


@functools.lru_cache(maxsize=2)
def _first_supernet(
    setting: Setting, stamp: tuple[int, int] | None, statistics: bool = False
) -> Tensors:
    found: Tensors = {}
    wanted = full_shapes(setting.space, setting.task, statistics)
    for arch in setting.space.cover():
        for piece in pieces_of(setting.space, arch, setting.task):
            module = blueprint(piece.build)
            prefix = f"{piece.name}." if piece.name else ""
            for name, draw in _draws(module, prefix, wanted).items():
                if name not in found:
                    found[name] = draw(rng_for(setting.seed, "init", name))
    drawn = {n: found[n] if n in found else unmeasured(n, shape) for n, shape in wanted.items()}
    return _warm(setting, drawn)


def initialise(module: nn.Module, rng: torch.Generator) -> None:
    """Draw all parameters of a module anew by one generator, in the order they are in.

    For a network that is drawn whole, not cut from a supernet, where names are keys of draws.
    """
    with torch.no_grad():
        for part in module.modules():
            values = getattr(part, "first_values", {})
            for name, parameter in part.named_parameters(recurse=False):
                parameter.copy_(_draw(name, tuple(parameter.shape), values.get(name), rng))


def _draws(
    model: nn.Module, prefix: str = "", shapes: dict[str, tuple[int, ...]] | None = None
) -> dict[str, Draw]:
    """Return how to draw each parameter, in the shape it has or in the one that is given.

    Values that a module gives as a tensor count only where that tensor has the wanted shape.
    """
    found: dict[str, Draw] = {}
    for module_name, module in model.named_modules():
        start = prefix + (f"{module_name}." if module_name else "")
        values = getattr(module, "first_values", {})
        for own, parameter in module.named_parameters(recurse=False):
            shape = (shapes or {}).get(start + own, tuple(parameter.shape))
            value = values.get(own)
            if isinstance(value, Tensor) and value.shape != shape:
                continue
            found[start + own] = functools.partial(_draw, own, shape, value)
    return found


def _draw(
    name: str, shape: tuple[int, ...], value: float | Tensor | None, rng: torch.Generator
) -> Tensor:
    """Draw matrices and kernels from torch's own range; biases are 0, scales 1, or as told."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    if value is None and len(shape) >= 2 and not name.endswith("bias"):
        bound = torch.Size(shape[1:]).numel() ** -0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=rng)
    return torch.full(shape, float(name == "weight") if value is None else value)


def _statistics(model: nn.Module) -> Tensors:
    """Return batch norm's running means and variances before the first batch."""
    return {
        name: unmeasured(name, tuple(buffer.shape))
        for name, buffer in model.state_dict().items()
        if is_statistic(name)
    }


def unmeasured(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a statistic before the first batch: mean 0, variance 1."""
    return torch.full(shape, float(name.endswith("running_var")))


def _warm(setting: Setting, drawn: Tensors) -> Tensors:
    """Replace drawn weights by those of the file that the setting names, where it names one."""
    if setting.init is None:
        return drawn
    saved = read_weights(Path(setting.init))
    heads = [name for name in drawn if name.startswith("head.")]
    learned = [name for name in heads if not is_statistic(name)]  # without them it is still known
    other_task = any(n not in saved or saved[n].shape[0] != drawn[n].shape[0] for n in learned)
    fresh = set(heads) if other_task else set()
    full = full_shapes(setting.space, setting.task, statistics=True)
    return {
        name: weight if name in fresh else _saved(setting.init, saved, name, weight, full)
        for name, weight in drawn.items()
    }


def _saved(
    path: str, saved: Tensors, name: str, drawn: Tensor, full: dict[str, tuple[int, ...]]
) -> Tensor:
    """Take a weight from a file of the same network, or the window from one of its supernet."""
    if name not in saved:
        if is_statistic(name):  # a supernet need not have any
            return drawn
        raise UserError(f"space.init: {path} has no weight {name}; is it of another space?")
    found, wanted = saved[name], (tuple(drawn.shape), full.get(name))
    if tuple(found.shape) not in wanted:
        raise UserError(
            f"space.init: {name} is {tuple(found.shape)} in {path}, but {wanted[0]} in this "
            f"network and {wanted[1]} in its supernet; is it of another space?"
        )
    if not is_finite(found):
        raise UserError(f"space.init: {name} in {path} is not finite")
    return view(found, tuple(drawn.shape)).to(drawn.dtype, copy=True).contiguous()


def read_weights(path: Path) -> Tensors:
    """Read a safetensors file, or say in one sentence why not."""
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise UserError(f"space.init: there is no file {path}") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"space.init: {path} is no safetensors file ({error})") from None
