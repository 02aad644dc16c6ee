from .client_privacy import ClientPrivacy as ClientPrivacy
from .sparse import SparseMeanFactory as SparseMeanFactory
from .sparse import gated as gated
from .structures import ConcatenationFactory as ConcatenationFactory
from .structures import by_name as by_name
from .structures import split_at as split_at
