from .client_work import ClientWork as ClientWork
from .compose import AggregationFactory as AggregationFactory
from .compose import compose_continual_process as compose_continual_process
from .continual_process import ContinualProcess as ContinualProcess
from .finalizer import FinalizerProcess as FinalizerProcess
