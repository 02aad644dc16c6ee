from .server import ServerSideTraining as ServerSideTraining
from .server import build_server_side_training as build_server_side_training
from .server import build_server_update as build_server_update
