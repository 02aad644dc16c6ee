"""What the knowledge base holds, and what of it each client receives for a new task."""

from tffcl.transfers.knowledge_base import KnowledgeBase
from tffcl.transfers.none import NoTransfer
from tffcl.transfers.previous_task import PreviousTask
from tffcl.transfers.transfer import Transfer

__all__ = ["KnowledgeBase", "NoTransfer", "PreviousTask", "Transfer"]
