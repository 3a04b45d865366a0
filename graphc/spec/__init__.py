"""The file format: models of it, what its values and names mean, and the program it makes."""
