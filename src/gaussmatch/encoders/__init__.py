"""Encoders: what maps an input to a point, and the adaptation that makes it a Gaussian."""

from gaussmatch.encoders.base import Reading, TextEncoder, Tokenizer, Tokens, pad
from gaussmatch.encoders.image import Projection
from gaussmatch.encoders.pcme import PCMEImage, PCMEText
from gaussmatch.encoders.probabilistic import Probabilistic
from gaussmatch.encoders.pvse import PVSEImage, PVSEText
from gaussmatch.encoders.text import WordGRU
from gaussmatch.encoders.variance import Bound, Shape

__all__ = [
    "Bound",
    "PCMEImage",
    "PCMEText",
    "PVSEImage",
    "PVSEText",
    "Probabilistic",
    "Projection",
    "Reading",
    "Shape",
    "TextEncoder",
    "Tokenizer",
    "Tokens",
    "WordGRU",
    "pad",
]
