"""The experiments of the three papers: `tffcl reproduce` runs them, and puts the figures beside the papers'."""

CONFEDMADE_TABLES = ("1", "2", "3", "4", "weights")
FIL_VER_TABLES = (
    "rotations",
    "permutations",
    "mild",
    "classes",
    "pretraining",
    "enrollment",
    "permuted",
    "privacy",
    "leak",
)
