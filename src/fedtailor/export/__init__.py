"""Carrying models out of a run: into other programs, other machines, other hands."""
