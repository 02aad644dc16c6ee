"""What clients do in a round: decomposed and plain local training."""

from tffcl.client_works.decomposed import DecomposedWork
from tffcl.client_works.decomposition import Decomposition
from tffcl.client_works.embedding_privacy import EmbeddingPrivacy
from tffcl.client_works.export import export_keras_model
from tffcl.client_works.optimizers import FusedAdam, LocalOptimizer
from tffcl.client_works.penalties import EWC, FedCurv, Penalty
from tffcl.client_works.plain import PlainWork
from tffcl.client_works.rehearsal import RehearsalModel, RehearsalWork
from tffcl.client_works.sharing import SHARING, Sharing
from tffcl.client_works.training import LocalTraining

__all__ = [
    "EWC",
    "SHARING",
    "DecomposedWork",
    "Decomposition",
    "EmbeddingPrivacy",
    "FedCurv",
    "FusedAdam",
    "LocalOptimizer",
    "LocalTraining",
    "Penalty",
    "PlainWork",
    "RehearsalModel",
    "RehearsalWork",
    "Sharing",
    "export_keras_model",
]
