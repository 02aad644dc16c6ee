from .continuing import continue_run as continue_run
from .evaluation import evaluate as evaluate
from .evaluation import predict as predict
from .finished import Client as Client
from .finished import FinishedRun as FinishedRun
from .finished import Task as Task
from .finished import load_run as load_run
from .keras_models import export as export
