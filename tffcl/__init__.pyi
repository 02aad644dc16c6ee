from . import aggregators as aggregators
from . import algorithms as algorithms
from . import client_works as client_works
from . import datasets as datasets
from . import errors as errors
from . import finalizers as finalizers
from . import layers as layers
from . import metrics as metrics
from . import models as models
from . import program as program
from . import reports as reports
from . import runtime as runtime
from . import streams as streams
from . import templates as templates
from . import testing as testing
from . import transfers as transfers
from . import use as use

__version__: str
from .algorithms.method import Method as Method
from .algorithms.method import method as method
from .experiment import Experiment as Experiment
from .experiment.plan import Plan as Plan
from .flags import script as script
from .use.finished import load_run as load_run
