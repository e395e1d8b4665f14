"""Encoders: what maps an input to a point, and the adaptation that makes it a Gaussian."""

from gaussmatch.encoders.base import Reading, TextEncoder, Tokenizer, Tokens, pad
from gaussmatch.encoders.gru import WordGRU
from gaussmatch.encoders.image import Projection
from gaussmatch.encoders.pcme import PCMEImage, PCMEText
from gaussmatch.encoders.probabilistic import Bound, Probabilistic, Shape
from gaussmatch.encoders.pvse import PVSEImage, PVSEText

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
