"""The generator of PerFedSDE-NAS."""
