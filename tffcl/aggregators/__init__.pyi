from .client_privacy import ClientPrivacy as ClientPrivacy
from .concatenation import ConcatenationFactory as ConcatenationFactory
from .gating import gated as gated
from .named import by_name as by_name
from .sparse_mean import SparseMeanFactory as SparseMeanFactory
from .splitting import split_at as split_at
