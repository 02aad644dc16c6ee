"""The driver: a stream of tasks, a process and a transfer become a history, checkpoints and results."""

from tffcl.program.client_data import ClientData, ClientTask, TextClientData
from tffcl.program.client_files import ClientFiles, read_state
from tffcl.program.client_store import ClientStore, merge, project
from tffcl.program.density_data import DensityClientData
from tffcl.program.domain_data import DomainClientData, OfflineDomainData
from tffcl.program.driver import run_program
from tffcl.program.pretraining import load_encoder, pretrain, save_encoder
from tffcl.program.reporters import ProgressBar, Released, Reporter
from tffcl.program.results import Results
from tffcl.program.stored_data import StoredData, write_client_data

__all__ = [
    "ClientData",
    "ClientFiles",
    "ClientStore",
    "ClientTask",
    "DensityClientData",
    "DomainClientData",
    "OfflineDomainData",
    "ProgressBar",
    "Released",
    "Reporter",
    "Results",
    "StoredData",
    "TextClientData",
    "load_encoder",
    "merge",
    "pretrain",
    "project",
    "read_state",
    "run_program",
    "save_encoder",
    "write_client_data",
]
