"""The experiments of the three papers (`tffcl reproduce`), and suites of methods on one stream (`tffcl benchmark`)."""

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
