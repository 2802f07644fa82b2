"""The floor of the engine: the reference job as one would write it by hand in plain PyTorch.

`python -m benchmarks.plain JOB ROUNDS PROCESSES` prints when each round ended, and a check sum.
JOB is an .npz file with the clients' images, their cohorts and orders, and the first weights.
"""

import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, LR = 32, 0.01
State = dict[str, Tensor]


class Network(nn.Module):
    """The same network as fedtailor's `cnn`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.hidden = nn.Linear(64 * 8 * 8, 112)
        self.head = nn.Linear(112, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(F.relu(self.hidden(x.flatten(1))))


class Job:
    """The job, read from its file; images become floats once."""

    def __init__(self, path: str) -> None:
        with np.load(path) as job:
            self.images = (torch.from_numpy(job["images"]).float() / 255 - 0.5) / 0.5
            self.labels = torch.from_numpy(job["labels"])
            self.orders = torch.from_numpy(job["orders"])
            self.cohorts = job["cohorts"].tolist()
            names = [name for name in job.files if name.startswith("w/")]
            self.weights = {name[2:]: torch.from_numpy(job[name]) for name in names}


def train(model: nn.Module, state: State, job: Job, round: int, client: int) -> State:
    """Train a copy of the global model on one client's data."""
    model.load_state_dict(state)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    images, labels = job.images[client], job.labels[client]
    for rows in job.orders[round, client].split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def average(states: list[State]) -> State:
    """Average; all clients have equally many examples."""
    return {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}


def sequential(path: str, rounds: int) -> tuple[list[float], State]:
    """Do the job in this process."""
    torch.set_num_threads(1)
    job, model = Job(path), Network()
    state, ends = job.weights, []
    for round in range(rounds):
        state = average([train(model, state, job, round, c) for c in job.cohorts[round]])
        ends.append(time.time())
    return ends, state


def serve(talk: Connection, path: str, number: int, processes: int) -> None:
    """Train a share of every cohort until told to stop."""
    torch.set_num_threads(1)
    job, model = Job(path), Network()
    while (asked := talk.recv()) is not None:
        round, arrays = asked
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
        mine = job.cohorts[round][number::processes]
        states = [train(model, state, job, round, c) for c in mine]
        talk.send([{name: t.numpy() for name, t in s.items()} for s in states])


def parallel(path: str, rounds: int, processes: int) -> tuple[list[float], State]:
    """Do the job in processes that get the weights over a pipe, a share of the cohort each."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(processes)]
    for number, (_, theirs) in enumerate(pipes):
        args = (theirs, path, number, processes)
        context.Process(target=serve, args=args, daemon=True).start()
    state, ends = Job(path).weights, []
    for round in range(rounds):
        for ours, _ in pipes:
            ours.send((round, {name: t.numpy() for name, t in state.items()}))
        replies = [reply for ours, _ in pipes for reply in ours.recv()]
        state = average([{n: torch.from_numpy(a) for n, a in r.items()} for r in replies])
        ends.append(time.time())
    for ours, _ in pipes:
        ours.send(None)
    return ends, state


def main() -> None:
    path, rounds, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ends, state = parallel(path, rounds, processes) if processes else sequential(path, rounds)
    total = sum(t.double().abs().sum().item() for t in state.values())
    print(json.dumps({"ends": ends, "sum": total}))


if __name__ == "__main__":
    main()
