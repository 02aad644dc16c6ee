"""Finalizers: what the server does with the aggregate of a round."""

from tffcl.finalizers.server_update import build_server_update

__all__ = ["build_server_update"]
