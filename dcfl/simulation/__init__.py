"""Clients on this machine."""
