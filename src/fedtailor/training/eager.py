"""Torch's optimizers without its compiler.

Torch guards the methods of its optimizers against `torch.compile`, and the first call of a guard
imports the whole compiler: most of a second of every process that trains. Within the guards
are the same methods.
"""

from inspect import unwrap

import torch


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`, to the bit."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`, to the bit."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
