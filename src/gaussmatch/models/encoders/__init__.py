"""Encoders: what maps an input to a point, and the adaptation that makes it a Gaussian."""

from gaussmatch.models.encoders.base import Reading, TextEncoder, Tokenizer, Tokens, pad
from gaussmatch.models.encoders.gru import WordGRU
from gaussmatch.models.encoders.image import Projection
from gaussmatch.models.encoders.pcme import PCMEImage, PCMEText
from gaussmatch.models.encoders.probabilistic import Bound, Probabilistic, Shape
from gaussmatch.models.encoders.pvse import PVSEImage, PVSEText

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
