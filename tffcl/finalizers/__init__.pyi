from .closed_form import build_closed_form as build_closed_form
from .closed_form import discriminant as discriminant
from .closed_form import nearest_mean as nearest_mean
from .closed_form import ridge as ridge
from .orthogonal import build_orthogonal_update as build_orthogonal_update
from .server import ServerSideTraining as ServerSideTraining
from .server import build_server_side_training as build_server_side_training
from .server import build_server_update as build_server_update
