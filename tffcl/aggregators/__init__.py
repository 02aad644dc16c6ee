"""Aggregators of sparse updates: factories as in `tff.aggregators`."""

from tffcl.aggregators.gated import gated
from tffcl.aggregators.sparse_mean import SparseMeanFactory

__all__ = ["SparseMeanFactory", "gated"]
