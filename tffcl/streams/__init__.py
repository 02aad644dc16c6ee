"""Who sees what when: splits of a labelled dataset into a sequence of tasks for each client."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
