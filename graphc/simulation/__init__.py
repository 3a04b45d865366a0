"""Predicted timelines: ``demands`` says what each op needs of a machine, ``engine`` lets them run."""
