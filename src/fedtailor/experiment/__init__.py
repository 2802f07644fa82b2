"""A whole experiment: prepare, create, execute."""
