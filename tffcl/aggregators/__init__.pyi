from .structures import ConcatenationFactory as ConcatenationFactory
from .structures import by_name as by_name
from .structures import split_at as split_at
from .updates import ClientPrivacy as ClientPrivacy
from .updates import SparseMeanFactory as SparseMeanFactory
from .updates import gated as gated
