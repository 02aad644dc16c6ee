"""Runs that have been: read back, taken out as plain models, asked for predictions, and continued with new tasks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
