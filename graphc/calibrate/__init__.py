"""A profile of the machine at hand: small specs, their times, and what follows from these."""
