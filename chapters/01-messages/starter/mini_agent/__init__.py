"""A small streaming agent, built chapter by chapter."""
