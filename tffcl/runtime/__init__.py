"""Where TFF computations run: local workers that this library starts, and always ends, itself; or this process.

Importing this package does not import TensorFlow, so that `tffcl.runtime.quiet` can still silence it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
