"""Encoders: what maps an input to a point, and the adaptation that makes it a Gaussian."""

from gaussmatch.models.encoders.base import Reading, TextEncoder, Tokenizer, Tokens, pad
from gaussmatch.models.encoders.probabilistic import Bound, Probabilistic, Shape
from gaussmatch.models.encoders.pvse import (
    GPO,
    PCMEImage,
    PCMEPPImage,
    PCMEPPText,
    PCMEText,
    PVSEImage,
    PVSEText,
)
from gaussmatch.models.encoders.vsepp import Projection, WordGRU

__all__ = [
    "GPO",
    "Bound",
    "PCMEImage",
    "PCMEPPImage",
    "PCMEPPText",
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
