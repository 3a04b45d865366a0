"""Predicted timelines: what each op needs of a machine, and how ops run that share it."""
