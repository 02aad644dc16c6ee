"""Aggregators of sparse updates and of rows: factories as in `tff.aggregators`."""

from tffcl.aggregators.by_name import by_name
from tffcl.aggregators.client_privacy import ClientPrivacy
from tffcl.aggregators.concatenation import ConcatenationFactory
from tffcl.aggregators.gated import gated
from tffcl.aggregators.sparse_mean import SparseMeanFactory
from tffcl.aggregators.split_at import split_at

__all__ = ["ClientPrivacy", "ConcatenationFactory", "SparseMeanFactory", "by_name", "gated", "split_at"]
