"""What a continual learner achieved, forgot, sent and gave away.

Scores are plain numpy on accuracy[client][after task][task].
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
