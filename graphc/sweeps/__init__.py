"""Sweeps: many schedules of one spec, each proven, timed or predicted, and the best kept."""
