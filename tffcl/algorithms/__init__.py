"""Published systems and baselines, each a thin builder over the parts."""

from tffcl.algorithms.decomposed import build_decomposed, build_fedseit, build_fedweit, build_local
from tffcl.algorithms.fed_avg import build_ewc, build_fed_avg, build_fed_curv
from tffcl.algorithms.fil_ver import build_fil_ver
from tffcl.algorithms.made import build_confedmade, build_fed_made, build_fedweit_made

__all__ = [
    "build_confedmade",
    "build_decomposed",
    "build_ewc",
    "build_fed_avg",
    "build_fed_curv",
    "build_fed_made",
    "build_fedseit",
    "build_fedweit",
    "build_fedweit_made",
    "build_fil_ver",
    "build_local",
]
