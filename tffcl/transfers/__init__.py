"""What the knowledge base holds, and what of it each client receives for a new task.

Importing this room does not import TensorFlow: SIT does so when it first decides.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
