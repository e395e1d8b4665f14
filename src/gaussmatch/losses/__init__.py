"""Losses over the score matrix of a batch. Each returns its named terms; the total is their sum."""

from gaussmatch.losses.generation import generation_loss, lesson
from gaussmatch.losses.triplet import Mining, TripletLoss, negatives

__all__ = ["Mining", "TripletLoss", "generation_loss", "lesson", "negatives"]
