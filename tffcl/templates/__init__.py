"""The contract: ContinualProcess, its parts, and how they are composed."""

from tffcl.templates.client_work import ClientWork
from tffcl.templates.compose import compose_continual_process
from tffcl.templates.continual_process import ContinualProcess
from tffcl.templates.finalizer import FinalizerProcess

__all__ = ["ClientWork", "ContinualProcess", "FinalizerProcess", "compose_continual_process"]
