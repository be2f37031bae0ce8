"""Noise processes, without a network."""
