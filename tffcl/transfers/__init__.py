"""What the knowledge base holds, and what of it each client receives for a new task.

Importing this room does not import TensorFlow: SIT does so when it first decides.
"""

from tffcl.transfers.ablations import RandomTask, Zeroed
from tffcl.transfers.all_past import AllPast
from tffcl.transfers.documents import document_vectors
from tffcl.transfers.knowledge_base import KnowledgeBase
from tffcl.transfers.none import NoTransfer
from tffcl.transfers.previous_task import PreviousTask
from tffcl.transfers.private_centroids import CentroidPrivacy
from tffcl.transfers.sampled import Sampled
from tffcl.transfers.sit import SIT
from tffcl.transfers.sit_decision import build_sit_decision
from tffcl.transfers.transfer import Transfer

__all__ = [
    "SIT",
    "AllPast",
    "CentroidPrivacy",
    "KnowledgeBase",
    "NoTransfer",
    "PreviousTask",
    "RandomTask",
    "Sampled",
    "Transfer",
    "Zeroed",
    "build_sit_decision",
    "document_vectors",
]
