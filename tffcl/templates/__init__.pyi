from .compose import AggregationFactory as AggregationFactory
from .compose import compose_continual_process as compose_continual_process
from .compose import with_task_inference as with_task_inference
from .contract import ClientWork as ClientWork
from .contract import ContinualProcess as ContinualProcess
from .contract import FinalizerProcess as FinalizerProcess
