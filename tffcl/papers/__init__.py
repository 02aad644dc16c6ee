"""The experiments of the three papers: `tffcl reproduce` runs them, and puts the figures beside the papers'."""

FIL_VER_TABLES = ("rotations", "permutations", "mild", "classes", "enrollment", "permuted", "privacy", "leak")
