"""Finalizers: what the server does with the aggregate of a round."""

from tffcl.finalizers.server_side_training import ServerSideTraining, build_server_side_training
from tffcl.finalizers.server_update import build_server_update

__all__ = ["ServerSideTraining", "build_server_side_training", "build_server_update"]
