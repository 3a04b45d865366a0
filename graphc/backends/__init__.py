"""What runs a plan: the reference in numpy, CUDA, and later a simulated timeline."""
