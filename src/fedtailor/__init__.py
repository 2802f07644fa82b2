"""Personalized federated neural architecture search: every client its own network."""

import os

# Same bits on every run: MKL's results otherwise depend on memory alignment. It must be set before
# torch is imported. Passive waiting keeps torch's threads from spinning beside other processes.
os.environ.setdefault("MKL_CBWR", "AVX2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
