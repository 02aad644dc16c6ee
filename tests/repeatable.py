"""Imported before NumPy and TensorFlow: their sums have the same parts on any machine, as far as they can be told."""

from __future__ import annotations

import os

os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # pytest has a process on each core
os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")  # what every x86 processor of today can do; gensim's sums
