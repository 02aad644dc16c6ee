"""Experiments: every option of a run, its data, and what runs it."""
