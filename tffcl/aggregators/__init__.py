"""Aggregators of sparse updates: factories as in `tff.aggregators`."""

from tffcl.aggregators.gated import gated
from tffcl.aggregators.sparse_mean import SparseMeanFactory
from tffcl.aggregators.split_at import split_at

__all__ = ["SparseMeanFactory", "gated", "split_at"]
