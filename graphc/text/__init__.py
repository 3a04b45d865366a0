"""What people write, and what they read: positions, carets, strict YAML, expressions."""
