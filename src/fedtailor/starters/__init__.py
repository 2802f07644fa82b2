"""Starter configs, copied by `fedtailor cp`."""
