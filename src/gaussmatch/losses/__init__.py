"""Losses over the score matrix of a batch. Each returns its named terms; the total is their sum."""

from gaussmatch.losses.triplet import Mining, TripletLoss, negatives

__all__ = ["Mining", "TripletLoss", "negatives"]
