"""Published systems and baselines, each a thin builder over the parts."""

from tffcl.algorithms.decomposed import build_decomposed, build_fedseit, build_fedweit, build_local
from tffcl.algorithms.fed_avg import build_fed_avg

__all__ = ["build_decomposed", "build_fed_avg", "build_fedseit", "build_fedweit", "build_local"]
