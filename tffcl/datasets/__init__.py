"""Data sets: texts with word vectors, images, binary vectors; loaders, and small sets that need no download."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
