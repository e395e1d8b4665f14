"""Encoders: what maps an input to a point, and the adaptation that makes it a Gaussian."""

from gaussmatch.models.encoders.probabilistic import Probabilistic
