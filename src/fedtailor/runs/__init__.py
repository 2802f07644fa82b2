"""Configs and run folders: data, never execution."""
